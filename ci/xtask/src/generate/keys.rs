//! The keys of a container as documents show them.

use anyhow::{Context, Result};
use ghost_model::key::Mode;
use ghost_model::{Key, Value};

const BEGIN: &str = "<!-- keys: made by `cargo run -p xtask -- gen` -->\n";
const END: &str = "<!-- end of keys -->";

/// What may be done with a key, in two words.
pub(super) fn mode(key: Key) -> &'static str {
    match key.mode() {
        Mode::Setting => "read-write",
        Mode::Members => "membership",
        Mode::ReadOnly => "read-only",
    }
}

/// What a key is worth where nothing was said.
pub(super) fn default(key: Key) -> String {
    Value::default_of(key).map_or("–".to_owned(), |v| v.to_string())
}

/// The text with its key table made anew.
pub(super) fn fill_in(text: &str) -> Result<String> {
    let missing = || format!("docs/interface.md lacks the lines {BEGIN:?} and {END:?}");
    let (before, rest) = text.split_once(BEGIN).with_context(missing)?;
    let (_, after) = rest.split_once(END).with_context(missing)?;
    let mut table = String::from(
        "| key | mode | default | per GPU | meaning |\n| --- | --- | --- | --- | --- |\n",
    );
    for key in Key::ALL {
        table += &format!(
            "| `{key}` | {} | {} | {} | {} |\n",
            mode(*key),
            default(*key),
            if key.per_gpu() { "yes" } else { "no" },
            key.doc().replace('|', "\\|")
        );
    }
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_replaced_and_nothing_else() {
        let once = fill_in(&format!("a\n{BEGIN}old\n{END}\nb\n")).unwrap();
        assert!(once.starts_with("a\n") && once.ends_with("-->\nb\n"));
        assert!(once.contains("| `gpu.weight` | read-write | 100 | yes |"));
        assert!(!once.contains("old"));
        assert_eq!(fill_in(&once).unwrap(), once);
        assert!(fill_in("no table").is_err());
    }
}
