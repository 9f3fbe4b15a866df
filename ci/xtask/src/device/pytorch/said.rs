//! What a program of PyTorch says, and when two that said something said the same.

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// How far results may be apart where two local runs agree, relative to the largest.
const EPSILON: f64 = 1e-6;
/// And of what two local runs differ by.
const SPREADS: f64 = 3.0;

/// The line of one workload.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Line {
    pub name: String,
    #[serde(default)]
    pub result: BTreeMap<String, Value>,
    /// Seconds from the process's start to the first result.
    pub first_s: Option<f64>,
    /// Seconds a step, of each block of steps.
    #[serde(default)]
    pub step_s: Vec<f64>,
    /// What the shim counted, a step, in the order of its counters.
    pub calls: Option<Vec<f64>>,
    /// Which calls were waited for, a step, by their word in the shim's file.
    #[serde(default)]
    pub waits: BTreeMap<usize, f64>,
    /// Why it failed.
    pub error: Option<String>,
}

/// The lines among what a process said.
pub(super) fn lines(out: &str) -> BTreeMap<String, Line> {
    let lines = out.lines().filter_map(|l| serde_json::from_str(l).ok());
    lines.map(|line: Line| (line.name.clone(), line)).collect()
}

/// How far apart two values are, relative to the first's largest number; infinite where they are
/// of different shapes, or texts that differ.
pub(super) fn apart(a: &Value, b: &Value) -> f64 {
    let (Some(x), Some(y)) = (numbers(a), numbers(b)) else {
        return if a == b { 0.0 } else { f64::INFINITY };
    };
    if x.len() != y.len() {
        return f64::INFINITY;
    }
    let largest = x.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
    let furthest = x.iter().zip(&y).map(|(a, b)| (a - b).abs());
    match furthest.fold(0.0, f64::max) {
        0.0 => 0.0,
        by => by / largest,
    }
}

fn numbers(value: &Value) -> Option<Vec<f64>> {
    match value {
        Value::Array(list) => list.iter().map(Value::as_f64).collect(),
        one => Some(vec![one.as_f64()?]),
    }
}

/// Whether a result is as near to a local one as local ones are to each other; else what is not.
pub(super) fn same(local: [&Line; 2], there: &Line) -> Result<(), String> {
    for (place, line) in [("local", local[0]), ("local", local[1]), ("there", there)] {
        if let Some(error) = &line.error {
            return Err(format!("{place}: {error}"));
        }
    }
    let [first, second] = local.map(|line| &line.result);
    if first.is_empty() || !there.result.keys().eq(first.keys()) {
        let keys: Vec<&String> = there.result.keys().collect();
        return Err(format!("there are results for {keys:?}"));
    }
    for (name, a) in first {
        let (b, got) = (second.get(name).unwrap_or(a), &there.result[name]);
        let by = apart(a, got).min(apart(b, got));
        let spread = apart(a, b);
        if by > (spread * SPREADS).max(EPSILON) {
            return Err(format!(
                "{name}: {got} is {by:.1e} from {a}, local runs {spread:.1e} from each other"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn line(value: Value) -> Line {
        let text = json!({"name": "a", "result": {"x": value}}).to_string();
        lines(&format!("noise\n{text}\n")).remove("a").unwrap()
    }

    #[test]
    fn the_distance_is_relative_to_the_largest() {
        assert_eq!(apart(&json!([4.0, -8.0]), &json!([4.0, -6.0])), 0.25);
        assert_eq!(apart(&json!(0.0), &json!(0.0)), 0.0);
        assert_eq!(apart(&json!(0.0), &json!(1.0)), f64::INFINITY);
        assert_eq!(apart(&json!("a"), &json!("a")), 0.0);
        for other in [json!("b"), json!(1.0), json!(["a"]), json!([1.0, 2.0])] {
            assert_eq!(apart(&json!("a"), &other), f64::INFINITY, "{other}");
            assert_eq!(apart(&json!([1.0, 2.0, 3.0]), &other), f64::INFINITY);
        }
        assert_eq!(apart(&json!(["a", 1]), &json!(["a", 1])), 0.0);
    }

    #[test]
    fn equal_is_within_what_local_runs_differ_by() {
        let is = |a: f64, b: f64, there: f64| {
            let [a, b, there] = [a, b, there].map(|v| line(json!([v])));
            same([&a, &b], &there).is_ok()
        };
        assert!(is(1.0, 1.0, 1.0) && is(1.0, 1.0, 1.0 + 1e-7) && !is(1.0, 1.0, 1.0 + 1e-5));
        assert!(is(1.0, 1.01, 0.975) && !is(1.0, 1.01, 0.96));
        assert!(is(1.0, 1.01, 1.035), "from the nearest of both");
    }

    #[test]
    fn what_is_missing_or_failed_is_not_equal() {
        let good = line(json!("text"));
        assert!(same([&good, &good], &good).is_ok());
        assert!(same([&good, &good], &line(json!("other"))).is_err());
        let empty = Line::default();
        assert!(same([&good, &good], &empty).is_err());
        assert!(same([&empty, &empty], &empty).is_err());
        let mut failed = good.clone();
        failed.error = Some("no memory".to_owned());
        let why = same([&good, &good], &failed).unwrap_err();
        assert!(why.contains("there") && why.contains("no memory"));
    }
}
