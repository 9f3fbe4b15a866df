//! Printing: tables for people, JSON for programs, and texts made fit for a terminal.

use crate::cli::Reading;
use crate::error::{Error, printable};
use ghost_model::units::Bytes;
use ghost_model::value::{Limit, Value};
use serde_json::Value as Json;
use std::io::{self, IsTerminal, Write};

/// How a reading command prints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Table,
    /// As REST has it.
    Json,
    /// These columns.
    Columns(Vec<String>),
}

impl Reading {
    /// What `--json`, `--format` and `GHOST_FORMAT` ask for.
    pub fn wanted(&self) -> Format {
        match self.format.as_deref() {
            _ if self.json => Format::Json,
            None | Some("" | "table") => Format::Table,
            Some("json") => Format::Json,
            Some(list) => Format::Columns(list.split(',').map(|c| c.trim().to_owned()).collect()),
        }
    }

    /// Whether JSON is asked for, in a command that has no columns.
    ///
    /// # Errors
    /// Columns were asked for.
    pub fn json(&self) -> Result<bool, Error> {
        match self.wanted() {
            Format::Table => Ok(false),
            Format::Json => Ok(true),
            Format::Columns(_) => Err(Error::usage(
                "this command prints no columns: --format takes json or table here",
            )),
        }
    }
}

/// Writes to standard output.
///
/// # Errors
/// [`Error::Closed`] if nobody reads it any more.
pub fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| match e.kind() {
            io::ErrorKind::BrokenPipe => Error::Closed,
            _ => Error::io("standard output", e),
        })
}

/// Writes one line to standard output.
///
/// # Errors
/// As [`print()`].
pub fn line(text: impl AsRef<str>) -> Result<(), Error> {
    print(&format!("{}\n", printable(text.as_ref())))
}

/// Writes a note to standard error: it is for the person, not for a script that reads the result.
pub fn note(text: impl AsRef<str>) {
    let line = format!("note: {}\n", printable(text.as_ref()));
    // With standard error closed there is nobody to tell.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Writes one document.
///
/// # Errors
/// As [`print()`].
pub fn document(json: &Json) -> Result<(), Error> {
    print(&format!("{json:#}\n"))
}

/// What standard output is.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// Columns, where lines must be cut.
    pub width: Option<usize>,
    /// Lines, where tables must be cut.
    pub height: Option<usize>,
    /// Whether colour is welcome.
    pub colour: bool,
}

impl Screen {
    /// Plain text of any size.
    pub const PIPE: Screen = Screen {
        width: None,
        height: None,
        colour: false,
    };

    /// Of this process.
    pub fn here() -> Screen {
        if !io::stdout().is_terminal() {
            return Screen::PIPE;
        }
        let size = terminal_size::terminal_size();
        Screen {
            width: size.map(|(w, _)| usize::from(w.0)),
            height: size.map(|(_, h)| usize::from(h.0)),
            colour: std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
                && std::env::var_os("TERM").is_none_or(|t| t != "dumb"),
        }
    }
}

/// Rows below a head, columns as wide as they must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns.
    pub head: Vec<String>,
    /// As many cells as the head has.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(head: &[&str]) -> Table {
        Table {
            head: head.iter().map(|h| (*h).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// A table of this many columns that need no head.
    pub fn headless(columns: usize) -> Table {
        Table {
            head: vec![String::new(); columns],
            rows: Vec::new(),
        }
    }

    /// The table as text, a newline after each row.
    pub fn render(&self, screen: Screen) -> String {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let widths: Vec<usize> = (0..self.head.len())
            .map(|i| {
                let cells = lines().filter_map(|l| l.get(i));
                cells.map(|c| c.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let mut out = String::new();
        let headless = self.head.iter().all(String::is_empty);
        for (row, cells) in lines().enumerate().skip(usize::from(headless)) {
            let mut line = String::new();
            for (cell, width) in cells.iter().zip(&widths) {
                line += &format!("{:<width$}  ", printable(cell));
            }
            let mut line = line.trim_end().to_owned();
            if let Some(width) = screen.width {
                line = line.chars().take(width).collect();
            }
            if screen.colour {
                line = if row == 0 {
                    format!("\u{1b}[1m{line}\u{1b}[0m")
                } else {
                    coloured(line, cells)
                };
            }
            out += &line;
            out.push('\n');
        }
        out
    }
}

/// States stand out; everything else is plain.
fn coloured(line: String, cells: &[String]) -> String {
    let colour = cells.iter().find_map(|c| match c.as_str() {
        "running" | "ok" => Some(32),
        "throttled" => Some(33),
        "frozen" => Some(36),
        "failed" => Some(31),
        _ => None,
    });
    match colour {
        Some(n) => format!("\u{1b}[{n}m{line}\u{1b}[0m"),
        None => line,
    }
}

/// `24G` where that is exact, else `18.2G`.
pub fn size(bytes: Bytes) -> String {
    let exact = [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')]
        .into_iter()
        .find(|(shift, _)| bytes.0 >> shift > 0)
        .filter(|(shift, _)| bytes.0.is_multiple_of(1 << shift));
    match exact {
        Some((shift, suffix)) => format!("{}{suffix}", bytes.0 >> shift),
        None => bytes.human(),
    }
}

/// A value for people: sizes with a suffix.
pub fn human(value: &Value) -> String {
    match value {
        Value::Limit(Limit::At(n)) | Value::Protection(Limit::At(n)) => size(*n),
        other => other.to_string(),
    }
}

/// `49.87`
pub fn percent(ratio: f64) -> String {
    format!("{:.2}", ratio * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        let wanted = |json, format: Option<&str>| {
            Reading {
                json,
                format: format.map(str::to_owned),
            }
            .wanted()
        };
        assert_eq!(wanted(false, None), Format::Table);
        assert_eq!(wanted(true, None), Format::Json);
        assert_eq!(wanted(false, Some("json")), Format::Json);
        assert_eq!(
            wanted(false, Some("name, state")),
            Format::Columns(vec!["name".into(), "state".into()])
        );
    }

    #[test]
    fn tables_are_aligned_cut_on_a_terminal_and_safe() {
        let mut t = Table::new(&["NAME", "STATE"]);
        t.rows = vec![
            vec!["a".into(), "running".into()],
            vec!["long\u{1b}[2J".into(), "idle".into()],
        ];
        assert_eq!(
            t.render(Screen::PIPE),
            "NAME      STATE\na         running\nlong?[2J  idle\n"
        );
        let narrow = Screen {
            width: Some(6),
            height: None,
            colour: true,
        };
        assert_eq!(
            t.render(narrow),
            "\u{1b}[1mNAME  \u{1b}[0m\n\u{1b}[32ma     \u{1b}[0m\nlong?[\n"
        );
    }

    #[test]
    fn sizes() {
        assert_eq!(size(Bytes(24 << 30)), "24G");
        assert_eq!(size(Bytes(3 << 29)), "1.5G");
        assert_eq!(size(Bytes(1536)), "1.5K");
        assert_eq!(size(Bytes(1023)), "1023");
        assert_eq!(size(Bytes(0)), "0");
    }
}
