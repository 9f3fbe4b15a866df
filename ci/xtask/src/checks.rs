//! The one form of every measured promise: a row with what was wanted, what was got and how far
//! apart the two may be.

use serde::Serialize;
use std::process::ExitCode;

/// How far a measured value may be from what was wanted.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// This far to either side.
    Within(f64),
    /// No more than what was wanted.
    AtMost,
    /// No less than what was wanted.
    AtLeast,
}

impl Limit {
    fn allows(self, wanted: f64, got: f64) -> bool {
        match self {
            Limit::Within(by) => (got - wanted).abs() <= by,
            Limit::AtMost => got <= wanted,
            Limit::AtLeast => got >= wanted,
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Limit::Within(by) => write!(f, "± {by}"),
            Limit::AtMost => f.write_str("at most"),
            Limit::AtLeast => f.write_str("at least"),
        }
    }
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What was measured.
    pub name: String,
    /// What was wanted; absent in rows that compare.
    pub wanted: Option<f64>,
    /// What was got.
    pub got: f64,
    /// Of both.
    pub unit: &'static str,
    /// Where `got` is an estimate: what it lies in, with 95 % confidence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// The allowed difference, for people.
    pub limit: String,
    /// Whether it holds; of an estimate, whether it may.
    pub ok: bool,
    /// Whether the interval holds values that are allowed and values that are not.
    pub open: bool,
}

/// A median, and the interval that holds the true one with 95 % confidence, whatever the values'
/// distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The median.
    pub value: f64,
    /// The interval; without bounds where there are fewer than six values.
    pub interval: [f64; 2],
}

impl Estimate {
    /// From independent values, in any order.
    pub fn of_median(values: &mut [f64]) -> Self {
        values.sort_by(f64::total_cmp);
        let n = values.len();
        // The true median lies below the k-th value as often as a fair coin shows fewer than k
        // heads in n throws.
        let (mut exactly, mut fewer, mut k) = (0.5_f64.powi(n as i32), 0.0, 0);
        while fewer + exactly <= 0.025 {
            fewer += exactly;
            exactly *= (n - k) as f64 / (k + 1) as f64;
            k += 1;
        }
        let interval = match k {
            0 => [f64::NEG_INFINITY, f64::INFINITY],
            k => [values[k - 1], values[n - k]],
        };
        Self {
            value: values.get(n / 2).copied().unwrap_or(f64::NAN),
            interval,
        }
    }
}

impl Check {
    /// A row that can fail; a value that is no number fails.
    pub fn new(
        name: impl Into<String>,
        wanted: f64,
        got: f64,
        unit: &'static str,
        limit: Limit,
    ) -> Self {
        Check {
            name: name.into(),
            wanted: Some(wanted),
            got,
            unit,
            interval: None,
            limit: limit.to_string(),
            ok: limit.allows(wanted, got),
            open: false,
        }
    }

    /// A row that fails only if what it lies in is not allowed from end to end: a noisy machine
    /// gives a wide interval, and leaves the row open.
    pub fn estimated(
        name: impl Into<String>,
        wanted: f64,
        got: Estimate,
        unit: &'static str,
        limit: Limit,
    ) -> Self {
        let [low, high] = got.interval.map(|end| limit.allows(wanted, end));
        let measured = got.value.is_finite();
        Check {
            interval: Some(got.interval),
            ok: measured && (low || high),
            open: measured && low != high,
            ..Check::new(name, wanted, got.value, unit, limit)
        }
    }

    /// A row for comparison.
    pub fn told(name: impl Into<String>, got: f64, unit: &'static str) -> Self {
        Check {
            name: name.into(),
            wanted: None,
            got,
            unit,
            interval: None,
            limit: "-".into(),
            ok: true,
            open: false,
        }
    }
}

/// All rows of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// `sim`, `stock` or `patched`; empty where no backend took part.
    pub backend: String,
    /// The GPU, or the processor.
    pub machine: String,
    /// UTC.
    pub date: String,
    /// The rows.
    pub checks: Vec<Check>,
}

impl Report {
    /// A report with no rows yet. Rows are also said on standard error as they come.
    pub fn new(backend: &str, machine: String) -> Self {
        let now = std::process::Command::new("date")
            .args(["-u", "+%Y-%m-%d %H:%M"])
            .output();
        let date = now
            .map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
            .unwrap_or_default();
        Report {
            backend: backend.into(),
            machine,
            date,
            checks: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn push(&mut self, check: Check) {
        eprintln!("  {}", line(&check));
        self.checks.push(check);
    }

    /// Adds a row that failed before it gave a number.
    pub fn failed(&mut self, name: &str, why: &anyhow::Error) {
        eprintln!("  {name}: {why:#}");
        self.checks.push(Check {
            name: format!("{name}: {why:#}"),
            wanted: None,
            got: f64::NAN,
            unit: "",
            interval: None,
            limit: "measured".into(),
            ok: false,
            open: false,
        });
    }

    /// Prints the table, or one JSON document; the exit status is 1 if a row failed.
    pub fn finish(self, json: bool) -> ExitCode {
        let bad = self.checks.iter().filter(|c| !c.ok).count();
        if json {
            println!(
                "{}",
                serde_json::to_string_pretty(&self).unwrap_or_else(|e| e.to_string())
            );
        } else {
            println!(
                "backend {} on {}, {}",
                self.backend, self.machine, self.date
            );
            println!(
                "{:<62} {:>10} {:>10} {:<8} {:<9} ok",
                "check", "wanted", "got", "unit", "limit"
            );
            for check in &self.checks {
                println!("{}", line(check));
            }
            println!("{} checks, {bad} failed", self.checks.len());
        }
        if bad == 0 && !self.checks.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

fn line(c: &Check) -> String {
    let wanted = c.wanted.map_or("-".into(), |w| format!("{w:.3}"));
    let ok = match (c.ok, c.open) {
        (false, _) => "FAILED",
        (true, true) => "open",
        (true, false) => "ok",
    };
    let interval = c.interval.map_or(String::new(), |[low, high]| {
        format!(" [{low:.3}, {high:.3}]")
    });
    format!(
        "{:<62} {wanted:>10} {:>10.3} {:<8} {:<9} {ok}{interval}",
        c.name, c.got, c.unit, c.limit
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        let ok = |wanted, got, limit| Check::new("x", wanted, got, "", limit).ok;
        assert!(ok(70.0, 70.5, Limit::Within(0.5)) && !ok(70.0, 69.4, Limit::Within(0.5)));
        assert!(ok(2.0, 1.9, Limit::AtMost) && !ok(2.0, 2.1, Limit::AtMost));
        assert!(ok(0.97, 0.98, Limit::AtLeast) && !ok(0.97, 0.96, Limit::AtLeast));
        assert!(
            !ok(1.0, f64::NAN, Limit::AtMost),
            "nothing measured is nothing shown"
        );
    }

    #[test]
    fn the_interval_of_a_median() {
        // The ranks are those of the tables for the sign test.
        let of = |n: i32| {
            let mut values: Vec<f64> = (1..=n).rev().map(f64::from).collect();
            Estimate::of_median(&mut values).interval
        };
        let none = [f64::NEG_INFINITY, f64::INFINITY];
        assert_eq!([of(0), of(5)], [none, none]);
        assert_eq!(of(6), [1.0, 6.0]);
        assert_eq!(of(10), [2.0, 9.0]);
        assert_eq!(of(20), [6.0, 15.0]);
        assert_eq!(of(100), [40.0, 61.0]);
    }

    #[test]
    fn an_estimate_fails_only_as_a_whole() {
        let row = |value, interval| {
            let got = Estimate { value, interval };
            let check = Check::estimated("x", 15.0, got, "us", Limit::AtMost);
            (check.ok, check.open)
        };
        assert_eq!(row(10.0, [8.0, 12.0]), (true, false));
        assert_eq!(row(18.0, [12.0, 30.0]), (true, true));
        assert_eq!(row(18.0, [16.0, 30.0]), (false, false));
        let nothing = Estimate::of_median(&mut []);
        assert!(!Check::estimated("x", 15.0, nothing, "us", Limit::AtMost).ok);
    }

    #[test]
    fn a_run_without_rows_fails() {
        assert_eq!(
            Report::new("sim", String::new()).finish(true),
            ExitCode::FAILURE
        );
    }
}
