//! PTX: text to tokens, tokens to code that can be run.

pub(crate) mod code;
mod instr;
mod lex;
mod lower;
mod parse;

pub use code::{Kernel, Module, Param};

/// Why a text is not a program that this device runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PtxError {
    /// Bytes that are not text.
    #[error("the PTX is not UTF-8 text")]
    Text,
    /// A comment or a string has no end.
    #[error("line {line}: a comment or a string has no end")]
    Unfinished {
        /// From 1.
        line: u32,
    },
    /// Characters that are no token.
    #[error("line {line}: `{token}` is not PTX")]
    Token {
        /// From 1.
        line: u32,
        /// The characters.
        token: String,
    },
    /// Something else was expected.
    #[error("line {line}: expected {expected}, found `{found}`")]
    Syntax {
        /// From 1.
        line: u32,
        /// What should stand there.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A name that nothing declares.
    #[error("line {line}: `{name}` is not declared")]
    Unknown {
        /// From 1.
        line: u32,
        /// The name.
        name: String,
    },
    /// PTX that this device does not run.
    #[error(
        "line {line}: `{what}` is not supported by the Ghost CPU device; its subset is in docs/cpu-device.md"
    )]
    Unsupported {
        /// From 1.
        line: u32,
        /// The opcode or the directive.
        what: String,
    },
    /// Too much of something.
    #[error("line {line}: more than {limit} {what}")]
    Limit {
        /// From 1.
        line: u32,
        /// Of what.
        what: &'static str,
        /// The most that is allowed.
        limit: u64,
    },
}

/// Parses a module.
///
/// # Errors
/// Says the line and what is wrong with it, or not supported.
pub fn parse(text: &[u8]) -> Result<Module, PtxError> {
    let text = std::str::from_utf8(text).map_err(|_| PtxError::Text)?;
    parse::module(&lex::lex(text)?)
}
