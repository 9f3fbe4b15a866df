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
    /// The allowed difference, for people.
    pub limit: String,
    /// Whether it holds.
    pub ok: bool,
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
        let (limit, ok) = match limit {
            Limit::Within(by) => (format!("± {by}"), (got - wanted).abs() <= by),
            Limit::AtMost => ("at most".into(), got <= wanted),
            Limit::AtLeast => ("at least".into(), got >= wanted),
        };
        Check {
            name: name.into(),
            wanted: Some(wanted),
            got,
            unit,
            limit,
            ok,
        }
    }

    /// A row for comparison.
    pub fn told(name: impl Into<String>, got: f64, unit: &'static str) -> Self {
        Check {
            name: name.into(),
            wanted: None,
            got,
            unit,
            limit: "-".into(),
            ok: true,
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
            limit: "measured".into(),
            ok: false,
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
    let ok = if c.ok { "ok" } else { "FAILED" };
    format!(
        "{:<62} {wanted:>10} {:>10.3} {:<8} {:<9} {ok}",
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
    fn a_run_without_rows_fails() {
        assert_eq!(
            Report::new("sim", String::new()).finish(true),
            ExitCode::FAILURE
        );
    }
}
