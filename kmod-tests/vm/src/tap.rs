//! Lines of TAP among whatever else a console says.

/// What a guest said about its tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    planned: Option<u32>,
    /// Numbers and names that passed, skipped ones included.
    passed: Vec<(u32, String)>,
    failed: Vec<(u32, String)>,
    skipped: Vec<String>,
    /// What was said since the last result, for the one that fails.
    notes: Vec<String>,
    told: Vec<String>,
}

/// Why a report is no success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TapError {
    /// Tests failed.
    #[error("failed in the guest:\n{0}")]
    Failed(String),
    /// The guest did not come to its end.
    #[error("the guest told {told} results of {planned}: it hung or died after {last}")]
    Incomplete {
        /// Results that came.
        told: usize,
        /// Results that were promised; 0 if not even that came.
        planned: u32,
        /// Name of the last test that ended.
        last: String,
    },
}

impl Report {
    /// Takes one line of the console.
    pub fn read(&mut self, line: &str) {
        if let Some(count) = line.strip_prefix("1..") {
            self.planned = count.parse().ok();
        } else if let Some(rest) = line.strip_prefix("not ok ") {
            let test = numbered(rest);
            self.told
                .push(format!("{}: {}", test.1, self.notes.join(" / ")));
            self.failed.push(test);
            self.notes.clear();
        } else if let Some(rest) = line.strip_prefix("ok ") {
            let (number, name) = numbered(rest);
            if let Some(name) = name.strip_suffix(" # SKIP") {
                self.skipped
                    .push(format!("{name}: {}", self.notes.join(" / ")));
            }
            self.passed.push((number, name));
            self.notes.clear();
        } else if let Some(note) = line.strip_prefix("# ") {
            self.notes.push(note.to_owned());
        }
    }

    /// Tests that were left out, each with its reason.
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }

    /// How many tests passed, those left out not counted; or what is wrong.
    pub fn passed(&self) -> Result<usize, TapError> {
        let told = self.passed.len() + self.failed.len();
        let planned = self.planned.unwrap_or(0);
        if !self.failed.is_empty() {
            return Err(TapError::Failed(self.told.join("\n")));
        }
        if planned == 0 || told != planned as usize {
            let last = self
                .passed
                .last()
                .map_or("nothing", |(_, name)| name.as_str());
            return Err(TapError::Incomplete {
                told,
                planned,
                last: last.to_owned(),
            });
        }
        Ok(told - self.skipped.len())
    }
}

/// `3 - name` as its number and name.
fn numbered(rest: &str) -> (u32, String) {
    let (number, name) = rest.split_once(" - ").unwrap_or(("0", rest));
    (number.parse().unwrap_or(0), name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str) -> Report {
        let mut report = Report::default();
        for line in text.lines() {
            report.read(line);
        }
        report
    }

    #[test]
    fn counts_what_passed() {
        let report =
            report("[ 1.0] noise\n1..3\nok 1 - a\n# skipped: no GPU\nok 2 - b # SKIP\nok 3 - c\n");
        assert_eq!(report.passed(), Ok(2));
        assert_eq!(report.skipped(), ["b: skipped: no GPU"]);
    }

    #[test]
    fn a_failure_has_its_reason() {
        let failed = report("1..2\nok 1 - a\n# x.c:3: want\nnot ok 2 - b\n").passed();
        assert_eq!(failed, Err(TapError::Failed("b: x.c:3: want".to_owned())));
    }

    #[test]
    fn a_guest_that_dies_is_no_success() {
        let incomplete = |told, planned, last: &str| {
            Err(TapError::Incomplete {
                told,
                planned,
                last: last.to_owned(),
            })
        };
        assert_eq!(report("1..2\nok 1 - a\n").passed(), incomplete(1, 2, "a"));
        assert_eq!(report("").passed(), incomplete(0, 0, "nothing"));
        assert_eq!(report("1..0\n").passed(), incomplete(0, 0, "nothing"));
    }
}
