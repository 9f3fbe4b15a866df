//! PTX text to tokens.

use super::PtxError;

/// A token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Tok<'a> {
    /// A name, a register, a directive or an opcode with its modifiers.
    Word(&'a str),
    Int(u64),
    F32(u32),
    F64(u64),
    Str(&'a str),
    Punct(u8),
}

/// A token and the line that it is on, from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) tok: Tok<'a>,
    pub(crate) line: u32,
}

fn is_start(c: u8) -> bool {
    c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

fn is_word(c: u8) -> bool {
    is_start(c) || c.is_ascii_digit()
}

/// Length of the bytes from the start that `f` takes.
fn span(bytes: &[u8], f: impl Fn(u8) -> bool) -> usize {
    bytes.iter().position(|c| !f(*c)).unwrap_or(bytes.len())
}

fn number(word: &str) -> Option<Tok<'static>> {
    let hex = |from: usize| u64::from_str_radix(word.get(from..)?, 16).ok();
    let unsigned = word.trim_end_matches('U');
    let radix = |from: usize, base| u64::from_str_radix(unsigned.get(from..)?, base).ok();
    let second = word.as_bytes().get(1).copied().unwrap_or(b' ');
    let prefixed = word.starts_with('0');
    match second {
        b'f' | b'F' if prefixed && word.len() == 10 => u32::try_from(hex(2)?).ok().map(Tok::F32),
        b'd' | b'D' if prefixed && word.len() == 18 => hex(2).map(Tok::F64),
        b'x' | b'X' if prefixed => radix(2, 16).map(Tok::Int),
        b'b' | b'B' if prefixed => radix(2, 2).map(Tok::Int),
        b'0'..=b'7' if prefixed && !word.contains('.') => radix(1, 8).map(Tok::Int),
        _ if word.contains('.') => word.parse::<f64>().ok().map(|f| Tok::F64(f.to_bits())),
        _ => unsigned.parse().ok().map(Tok::Int),
    }
}

/// All tokens of `text`.
pub(crate) fn lex(text: &str) -> Result<Vec<Token<'_>>, PtxError> {
    let mut out = Vec::new();
    let mut rest = text;
    let mut line = 1_u32;
    while let Some(&c) = rest.as_bytes().first() {
        let bytes = rest.as_bytes();
        let (len, tok) = if c.is_ascii_whitespace() {
            (1, None)
        } else if rest.starts_with("//") {
            (span(bytes, |c| c != b'\n'), None)
        } else if rest.starts_with("/*") {
            let end = rest.find("*/").ok_or(PtxError::Unfinished { line })?;
            (end + 2, None)
        } else if c == b'"' {
            let end = rest.get(1..).and_then(|r| r.find('"'));
            let end = end.ok_or(PtxError::Unfinished { line })?;
            (end + 2, rest.get(1..end + 1).map(Tok::Str))
        } else if c.is_ascii_digit() {
            let len = span(bytes, |c| c.is_ascii_alphanumeric() || c == b'.');
            let word = rest.get(..len).unwrap_or_default();
            let tok = number(word).ok_or_else(|| PtxError::Token {
                line,
                token: word.to_owned(),
            })?;
            (len, Some(tok))
        } else if is_start(c) {
            let len = span(bytes, is_word);
            (len, rest.get(..len).map(Tok::Word))
        } else if b",;:{}[]()+-!@<>=|*&~".contains(&c) {
            (1, Some(Tok::Punct(c)))
        } else {
            let token = rest.chars().next().map(String::from).unwrap_or_default();
            return Err(PtxError::Token { line, token });
        };
        if let Some(tok) = tok {
            out.push(Token { tok, line });
        }
        let (taken, after) = rest.split_at(len);
        line = line.saturating_add(taken.bytes().filter(|c| *c == b'\n').count() as u32);
        rest = after;
    }
    Ok(out)
}
