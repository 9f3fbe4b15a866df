//! What people write: container files, specs as JSON, values, `KEY=VALUE`.

use ghost_model::{Key, Spec, Value, config};
use ghostctl::assign;
use serde_json::Value as Json;

/// A container file, and the file printed from it.
pub fn container_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(containers) = config::parse(text) {
        let printed = config::print(&containers);
        assert_eq!(config::parse(&printed), Ok(containers), "{printed}");
    }
}

/// A spec, and the same as a patch on another.
pub fn spec(data: &[u8]) {
    let Ok(json) = serde_json::from_slice::<Json>(data) else {
        return;
    };
    let mut base = Spec::default();
    for (key, text) in [("gpu.weight", "7"), ("gpu.max", "50%"), ("gpu.idle", "1")] {
        base.set_text(key, None, text).expect("a valid value");
    }
    let before = base.clone();
    let merged = base.merge_json(&json);
    if merged.is_err() {
        assert_eq!(base, before, "a refused patch changes nothing");
    }
    for spec in [Some(base), Spec::try_from(json).ok()]
        .into_iter()
        .flatten()
    {
        let printed = Json::from(spec.clone());
        assert_eq!(serde_json::to_value(&spec).ok().as_ref(), Some(&printed));
        assert_eq!(Spec::try_from(printed), Ok(spec));
    }
}

/// A text as the value of each key, and the value printed as text and as JSON.
pub fn value(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for &key in Key::ALL {
        if let Ok(value) = Value::parse(key, text) {
            let printed = value.to_string();
            assert_eq!(Value::parse(key, &printed).as_ref(), Ok(&value), "{key}");
            let json = value.to_json();
            assert_eq!(Value::from_json(key, &json).as_ref(), Ok(&value), "{key}");
        }
    }
}

/// `KEY=VALUE` arguments, one a line: what ghostctl accepts, ghostd does too, as the same.
pub fn assignments(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let pairs: Vec<String> = text.lines().map(str::to_owned).collect();
    let Ok(changes) = assign::parse(&pairs) else {
        return;
    };
    let mut spec = Spec::default();
    assert_eq!(spec.merge_json(&assign::patch(&changes, None)), Ok(()));
    for (key, value) in &changes {
        assert_eq!(spec.get(*key, None), value.as_ref(), "{key}");
    }
}
