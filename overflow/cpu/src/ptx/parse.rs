//! Directives: variables, kernels, their parameters and registers.

use super::PtxError;
use super::code::{DYNAMIC_SHARED, Instr, Kernel, Module, Op, Operand, Param, Ty, Var};
use super::lex::{Tok, Token};
use std::collections::HashMap;
use std::sync::Arc;

const MAX_REGISTERS: u64 = 16 * 1024;
const MAX_PARAM_BYTES: u64 = 32 * 1024;
const MAX_SHARED: u64 = 1 << 20;
const MAX_LOCAL: u64 = 64 * 1024;
const MAX_VARIABLE: u64 = 1 << 40;
const MAX_NESTING: usize = 64;

type Result<T> = std::result::Result<T, PtxError>;

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Symbol {
    /// A register, once used, and its type.
    Register(u32, Ty),
    /// An address in shared, local or parameter memory.
    Address(u64),
    Global(u32),
    /// Declared in the module, for each kernel that uses it: size and alignment.
    Shared(u64, u64),
}

/// Names between two braces.
#[derive(Default)]
struct Scope {
    names: HashMap<String, Symbol>,
    /// `%r<8>`: prefix, count, type.
    ranges: Vec<(String, u64, Ty)>,
    labels: HashMap<String, usize>,
    /// Branches whose label is not known yet.
    jumps: Vec<(usize, String)>,
}

pub(super) struct Parser<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    module: Module,
    names: HashMap<String, Symbol>,
    scopes: Vec<Scope>,
    pub(super) kernel: Kernel,
}

pub(super) fn module(tokens: &[Token]) -> Result<Module> {
    let mut parser = Parser {
        tokens,
        at: 0,
        module: Module::default(),
        names: HashMap::new(),
        scopes: Vec::new(),
        kernel: Kernel::default(),
    };
    if !matches!(parser.peek(), Some(Tok::Word(".version"))) {
        return Err(parser.wrong(".version"));
    }
    while parser.peek().is_some() {
        parser.item()?;
    }
    Ok(parser.module)
}

impl<'a> Parser<'a> {
    pub(super) fn peek(&self) -> Option<Tok<'a>> {
        self.tokens.get(self.at).map(|t| t.tok)
    }

    pub(super) fn line(&self) -> u32 {
        let last = self.tokens.last();
        self.tokens.get(self.at).or(last).map_or(1, |t| t.line)
    }

    pub(super) fn wrong(&self, expected: &'static str) -> PtxError {
        let found = match self.peek() {
            None => "the end".to_owned(),
            Some(Tok::Word(w)) => w.to_owned(),
            Some(Tok::Str(s)) => s.to_owned(),
            Some(Tok::Punct(c)) => char::from(c).to_string(),
            Some(Tok::Int(n)) => n.to_string(),
            Some(Tok::F32(n)) => f32::from_bits(n).to_string(),
            Some(Tok::F64(n)) => f64::from_bits(n).to_string(),
        };
        PtxError::Syntax {
            line: self.line(),
            expected,
            found,
        }
    }

    pub(super) fn unsupported(&self, what: &str) -> PtxError {
        PtxError::Unsupported {
            line: self.line(),
            what: what.to_owned(),
        }
    }

    fn at_most(&self, n: u64, limit: u64, what: &'static str) -> Result<()> {
        let line = self.line();
        if n > limit {
            return Err(PtxError::Limit { line, what, limit });
        }
        Ok(())
    }

    pub(super) fn eat(&mut self, c: u8) -> bool {
        let found = self.peek() == Some(Tok::Punct(c));
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, c: u8, name: &'static str) -> Result<()> {
        if self.eat(c) {
            Ok(())
        } else {
            Err(self.wrong(name))
        }
    }

    pub(super) fn word(&mut self) -> Result<&'a str> {
        let Some(Tok::Word(word)) = self.peek() else {
            return Err(self.wrong("a name"));
        };
        self.at += 1;
        Ok(word)
    }

    pub(super) fn int(&mut self) -> Result<u64> {
        let negative = self.eat(b'-');
        let Some(Tok::Int(n)) = self.peek() else {
            return Err(self.wrong("a number"));
        };
        self.at += 1;
        Ok(if negative { n.wrapping_neg() } else { n })
    }

    pub(super) fn skip(&mut self) {
        self.at += 1;
    }

    fn skip_line(&mut self) {
        let line = self.line();
        while self.tokens.get(self.at).is_some_and(|t| t.line == line) {
            self.at += 1;
        }
    }

    fn item(&mut self) -> Result<()> {
        match self.word()? {
            ".version" | ".target" | ".address_size" | ".file" | ".loc" => self.skip_line(),
            ".visible" | ".extern" | ".weak" | ".common" => {}
            ".entry" => self.entry()?,
            ".global" | ".const" => self.variable()?,
            ".shared" => {
                let (name, size, align) = self.declaration()?;
                self.at_most(size, MAX_SHARED, "bytes of shared memory")?;
                self.names.insert(name, Symbol::Shared(size, align));
                self.expect(b';', ";")?;
            }
            ".pragma" => {
                self.skip();
                self.expect(b';', ";")?;
            }
            ".section" => {
                while self.peek().is_some() && !self.eat(b'}') {
                    self.skip();
                }
            }
            other => {
                self.at -= 1;
                return Err(self.unsupported(other));
            }
        }
        Ok(())
    }

    /// `.align 8 .b8 name[16]`: name, bytes, alignment. Of no size where the brackets are empty.
    fn declaration(&mut self) -> Result<(String, u64, u64)> {
        let mut align = None;
        let (mut name, mut ty, mut vector) = (None, None, 1);
        while name.is_none() {
            let word = self.word()?;
            match word {
                ".align" => align = Some(self.int()?),
                ".attribute" => {
                    self.expect(b'(', "(")?;
                    match self.word()? {
                        ".managed" => self.expect(b')', ")")?,
                        other => return Err(self.unsupported(other)),
                    }
                }
                ".ptr" | ".global" | ".shared" | ".const" | ".local" => {}
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                _ => match word.strip_prefix('.') {
                    Some(of) => {
                        ty = Some(Ty::parse(of).ok_or_else(|| self.unsupported(word))?);
                    }
                    None => name = Some(word.to_owned()),
                },
            }
        }
        let name = name.unwrap_or_default();
        let element = ty.map_or(1, |t| u64::from(t.bytes)) * vector;
        let align = align.unwrap_or(element);
        if !align.is_power_of_two() || align > 1024 {
            return Err(self.wrong("an alignment of 1 to 1024 before this"));
        }
        let mut size = element;
        while self.eat(b'[') {
            let n = if self.peek() == Some(Tok::Punct(b']')) {
                0
            } else {
                self.int()?
            };
            self.expect(b']', "]")?;
            size = size.saturating_mul(n);
            self.at_most(size, MAX_VARIABLE, "bytes in one variable")?;
        }
        Ok((name, size, align))
    }

    fn variable(&mut self) -> Result<()> {
        // The element's size is needed again for the initialiser.
        let from = self.at;
        let (name, size, _) = self.declaration()?;
        let words = self.tokens.get(from..self.at).unwrap_or_default();
        let element = words.iter().find_map(|t| match t.tok {
            Tok::Word(w) => Ty::parse(w.strip_prefix('.')?),
            _ => None,
        });
        let element = element.unwrap_or(Ty::PRED);
        let managed = words.iter().any(|t| t.tok == Tok::Word(".managed"));
        let mut var = Var {
            name: name.clone(),
            managed,
            size: usize::try_from(size).unwrap_or(usize::MAX),
            init: Vec::new(),
            relocations: Vec::new(),
        };
        if self.eat(b'=') {
            self.initialiser(&mut var, element)?;
            if var.size == 0 {
                var.size = var.init.len();
            }
            self.at_most(
                var.init.len() as u64,
                var.size as u64,
                "bytes to begin with",
            )?;
        }
        self.expect(b';', ";")?;
        let index = self.module.vars.len() as u32;
        self.module.vars.push(var);
        self.names.insert(name, Symbol::Global(index));
        Ok(())
    }

    fn initialiser(&mut self, var: &mut Var, element: Ty) -> Result<()> {
        let mut depth = 0_usize;
        loop {
            if self.eat(b'{') {
                depth += 1;
            } else if self.eat(b'}') {
                depth = depth.saturating_sub(1);
            } else if !(depth > 0 && self.eat(b',')) {
                let bytes = usize::from(element.bytes);
                let value = match self.peek() {
                    Some(Tok::Word(_)) => {
                        let (index, offset) = self.address_of()?;
                        var.relocations.push((var.init.len(), index, offset));
                        0
                    }
                    _ => self.literal(element)?,
                };
                let value = value.to_le_bytes();
                var.init.extend(value.get(..bytes).unwrap_or_default());
            }
            if depth == 0 {
                return Ok(());
            }
            if self.peek().is_none() {
                return Err(self.wrong("}"));
            }
        }
    }

    /// `name`, `name+8`, `generic(name)`.
    fn address_of(&mut self) -> Result<(u32, i64)> {
        let mut word = self.word()?;
        let wrapped = word == "generic" && self.eat(b'(');
        if wrapped {
            word = self.word()?;
        }
        let Some(Symbol::Global(index)) = self.names.get(word).copied() else {
            return Err(self.unknown(word));
        };
        if wrapped {
            self.expect(b')', ")")?;
        }
        let offset = if self.eat(b'+') {
            self.int()? as i64
        } else {
            0
        };
        Ok((index, offset))
    }

    /// A number, as the bits of `ty`.
    pub(super) fn literal(&mut self, ty: Ty) -> Result<u64> {
        let negative = self.eat(b'-');
        let tok = self.peek().ok_or_else(|| self.wrong("a number"))?;
        let bits = match (tok, ty.is_float(), ty.bytes) {
            (Tok::Int(n), false, _) => {
                let n = if negative { n.wrapping_neg() } else { n };
                n & ty.mask()
            }
            (Tok::F32(n), true, 8) => {
                let f = f64::from(f32::from_bits(n));
                (if negative { -f } else { f }).to_bits()
            }
            (Tok::F32(n), _, _) => u64::from(n ^ (u32::from(negative) << 31)),
            (Tok::F64(n), true, 4) => {
                let f = f64::from_bits(n) as f32;
                u64::from(if negative { -f } else { f }.to_bits())
            }
            (Tok::F64(n), _, 8) => n ^ (u64::from(negative) << 63),
            (Tok::Int(n), true, 4) => {
                u64::from(if negative { -(n as f32) } else { n as f32 }.to_bits())
            }
            (Tok::Int(n), true, _) => {
                let f = n as f64;
                (if negative { -f } else { f }).to_bits()
            }
            _ => return Err(self.wrong("a number")),
        };
        self.skip();
        Ok(bits)
    }

    pub(super) fn unknown(&self, name: &str) -> PtxError {
        PtxError::Unknown {
            line: self.line(),
            name: name.to_owned(),
        }
    }

    fn entry(&mut self) -> Result<()> {
        self.kernel = Kernel {
            name: self.word()?.to_owned(),
            ..Kernel::default()
        };
        self.scopes = vec![Scope::default()];
        if self.eat(b'(') {
            while !self.eat(b')') {
                if self.word()? != ".param" {
                    return Err(self.wrong(".param before this"));
                }
                let (name, size, align) = self.declaration()?;
                let offset = (self.kernel.param_bytes as u64).next_multiple_of(align);
                self.at_most(offset + size, MAX_PARAM_BYTES, "bytes of parameters")?;
                self.declare(name, Symbol::Address(offset));
                let (offset, size) = (offset as usize, size as usize);
                self.kernel.params.push(Param { offset, size });
                self.kernel.param_bytes = offset + size;
                self.eat(b',');
            }
        }
        // Directives for tuning, and the bound on threads.
        while let Some(Tok::Word(word)) = self.peek() {
            self.skip();
            let mut product = 1_u64;
            if matches!(self.peek(), Some(Tok::Int(_))) {
                product = self.int()?;
                while self.eat(b',') {
                    product = product.saturating_mul(self.int()?);
                }
            }
            match word {
                ".maxntid" | ".reqntid" => {
                    self.kernel.max_threads = Some(product.min(1024) as u32);
                }
                ".minnctapersm" | ".maxnreg" => {}
                _ => return Err(self.unsupported(word)),
            }
        }
        if self.eat(b';') {
            return Ok(());
        }
        self.expect(b'{', "{")?;
        while let Some(last) = self.scopes.len().checked_sub(1) {
            self.statement(last)?;
        }
        let line = self.line();
        self.kernel.code.push(Instr {
            guard: None,
            op: Op::Exit,
            line,
        });
        let kernel = std::mem::take(&mut self.kernel);
        self.module.kernels.push(Arc::new(kernel));
        Ok(())
    }

    fn statement(&mut self, depth: usize) -> Result<()> {
        if self.eat(b'{') {
            self.at_most(depth as u64, MAX_NESTING as u64, "braces in each other")?;
            self.scopes.push(Scope::default());
            return Ok(());
        }
        if self.eat(b'}') {
            return self.close();
        }
        if self.eat(b';') {
            return Ok(());
        }
        let next = self.tokens.get(self.at + 1).map(|t| t.tok);
        match self.peek() {
            Some(Tok::Word(".loc" | ".file")) => self.skip_line(),
            Some(Tok::Word(".pragma")) => {
                self.skip();
                self.skip();
                self.expect(b';', ";")?;
            }
            Some(Tok::Word(".reg")) => self.registers()?,
            Some(Tok::Word(".shared")) => {
                self.skip();
                let (name, size, align) = self.declaration()?;
                let symbol = self.place_shared(size, align)?;
                self.declare(name, symbol);
                self.expect(b';', ";")?;
            }
            Some(Tok::Word(".local")) => {
                self.skip();
                let (name, size, align) = self.declaration()?;
                let offset = (self.kernel.local as u64).next_multiple_of(align);
                self.at_most(
                    offset.saturating_add(size),
                    MAX_LOCAL,
                    "bytes of local memory",
                )?;
                self.kernel.local = (offset + size) as usize;
                self.declare(name, Symbol::Address(offset));
                self.expect(b';', ";")?;
            }
            Some(Tok::Word(word)) if word.starts_with('.') => return Err(self.unsupported(word)),
            Some(Tok::Word(word)) if next == Some(Tok::Punct(b':')) => {
                self.at += 2;
                let here = self.kernel.code.len();
                if let Some(scope) = self.scopes.last_mut() {
                    scope.labels.insert(word.to_owned(), here);
                }
            }
            _ => self.instruction()?,
        }
        Ok(())
    }

    /// Ends the innermost braces: branches to their labels are known now, others may be further out.
    fn close(&mut self) -> Result<()> {
        let Some(scope) = self.scopes.pop() else {
            return Err(self.wrong("{ before this"));
        };
        for (at, label) in scope.jumps {
            if let Some(target) = scope.labels.get(&label) {
                if let Some(Instr { op, .. }) = self.kernel.code.get_mut(at) {
                    *op = Op::Bra(*target);
                }
            } else if let Some(outer) = self.scopes.last_mut() {
                outer.jumps.push((at, label));
            } else {
                let line = self.kernel.code.get(at).map_or(0, |i| i.line);
                return Err(PtxError::Unknown { line, name: label });
            }
        }
        Ok(())
    }

    /// The instruction that comes next branches to `label`.
    pub(super) fn jump(&mut self, label: &str) {
        let at = self.kernel.code.len();
        if let Some(scope) = self.scopes.last_mut() {
            scope.jumps.push((at, label.to_owned()));
        }
    }

    fn declare(&mut self, name: String, symbol: Symbol) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.names.insert(name, symbol);
        }
    }

    fn place_shared(&mut self, size: u64, align: u64) -> Result<Symbol> {
        if size == 0 {
            return Ok(Symbol::Address(DYNAMIC_SHARED));
        }
        let offset = (self.kernel.shared as u64).next_multiple_of(align);
        self.at_most(
            offset.saturating_add(size),
            MAX_SHARED,
            "bytes of shared memory",
        )?;
        self.kernel.shared = (offset + size) as usize;
        Ok(Symbol::Address(offset))
    }

    fn registers(&mut self) -> Result<()> {
        self.skip();
        let word = self.word()?;
        let ty = word.strip_prefix('.').and_then(Ty::parse);
        let ty = ty.ok_or_else(|| self.unsupported(word))?;
        loop {
            let name = self.word()?.to_owned();
            if self.eat(b'<') {
                let count = self.int()?;
                self.expect(b'>', ">")?;
                if let Some(scope) = self.scopes.last_mut() {
                    scope.ranges.push((name, count, ty));
                }
            } else {
                let symbol = self.new_register(ty)?;
                self.declare(name, symbol);
            }
            if !self.eat(b',') {
                return self.expect(b';', ";");
            }
        }
    }

    fn new_register(&mut self, ty: Ty) -> Result<Symbol> {
        let index = self.kernel.registers;
        self.at_most(u64::from(index) + 1, MAX_REGISTERS, "registers in use")?;
        self.kernel.registers += 1;
        Ok(Symbol::Register(index, ty))
    }

    /// What `name` stands for here. A register of a range gets its number when it is first used.
    pub(super) fn resolve(&mut self, name: &str) -> Result<Option<Symbol>> {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = name.get(stem.len()..).unwrap_or_default();
        let canonical = number == "0" || !number.starts_with('0');
        let number = number.parse::<u64>().ok().filter(|_| canonical);
        for depth in (0..self.scopes.len()).rev() {
            let Some(scope) = self.scopes.get(depth) else {
                break;
            };
            if let Some(symbol) = scope.names.get(name) {
                return Ok(Some(*symbol));
            }
            let range = number.and_then(|n| {
                let mut ranges = scope.ranges.iter();
                ranges.find(|(prefix, count, _)| prefix == stem && n < *count)
            });
            if let Some(&(_, _, ty)) = range {
                let symbol = self.new_register(ty)?;
                if let Some(scope) = self.scopes.get_mut(depth) {
                    scope.names.insert(name.to_owned(), symbol);
                }
                return Ok(Some(symbol));
            }
        }
        match self.names.get(name).copied() {
            Some(Symbol::Shared(size, align)) => {
                let symbol = self.place_shared(size, align)?;
                if let Some(scope) = self.scopes.first_mut() {
                    scope.names.insert(name.to_owned(), symbol);
                }
                Ok(Some(symbol))
            }
            other => Ok(other),
        }
    }

    /// The operand that a name stands for.
    pub(super) fn named(&mut self, name: &str) -> Result<Operand> {
        match self.resolve(name)? {
            Some(Symbol::Register(reg, _)) => Ok(Operand::Reg(reg)),
            Some(Symbol::Address(at)) => Ok(Operand::Imm(at)),
            Some(Symbol::Global(index)) => Ok(Operand::Global(index, 0)),
            Some(Symbol::Shared(..)) | None => Err(self.unknown(name)),
        }
    }
}
