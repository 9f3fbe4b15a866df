//! An instruction's guard, opcode, modifiers and operands.

use super::PtxError;
use super::code::{Addr, Cmp, Dst, Instr, Operand, Space, Special, Ty};
use super::lex::Tok;
use super::parse::{Parser, Symbol};

type Result<T> = std::result::Result<T, PtxError>;

/// The modifiers of an opcode. What is not taken from it in the end is not supported.
pub(super) struct Mods<'a> {
    pub(super) opcode: &'a str,
    rest: Vec<&'a str>,
}

impl<'a> Mods<'a> {
    fn new(opcode: &'a str) -> (&'a str, Self) {
        let mut parts = opcode.split('.');
        let base = parts.next().unwrap_or_default();
        let rest = parts.collect();
        (base, Self { opcode, rest })
    }

    /// Whether `name` is one; it is then taken.
    pub(super) fn take(&mut self, name: &str) -> bool {
        let at = self.rest.iter().position(|m| *m == name);
        at.map(|at| self.rest.remove(at)).is_some()
    }

    /// Takes the first one for which `f` has an answer.
    pub(super) fn pick<T>(&mut self, f: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (at, found) = self
            .rest
            .iter()
            .enumerate()
            .find_map(|(at, m)| Some((at, f(m)?)))?;
        self.rest.remove(at);
        Some(found)
    }

    /// Takes those that change nothing here: caches, orders of memory, scopes, denormals.
    pub(super) fn ignore(&mut self, names: &[&str]) {
        self.rest.retain(|m| !names.contains(m));
    }

    fn left(&self) -> bool {
        !self.rest.is_empty()
    }
}

pub(super) const CACHES: &[&str] = &[
    "ca",
    "cg",
    "cs",
    "cv",
    "lu",
    "wb",
    "wt",
    "nc",
    "volatile",
    "relaxed",
    "acquire",
    "release",
    "acq_rel",
    "weak",
    "sc",
    "cta",
    "gpu",
    "sys",
    "cluster",
    "unified",
    "L1::evict_last",
    "L1::no_allocate",
    "L1::evict_first",
    "L2::128B",
    "L2::256B",
    "L2::64B",
];

impl<'a> Parser<'a> {
    pub(super) fn instruction(&mut self) -> Result<()> {
        let line = self.line();
        let mut guard = None;
        if self.eat(b'@') {
            let not = self.eat(b'!');
            guard = Some((self.register()?.reg, not));
        }
        let (base, mut mods) = Mods::new(self.word()?);
        let opcode = mods.opcode;
        let unsupported = || PtxError::Unsupported {
            line,
            what: opcode.to_owned(),
        };
        let op = self.lower(base, &mut mods)?.ok_or_else(unsupported)?;
        if mods.left() {
            return Err(unsupported());
        }
        self.expect(b';', ";")?;
        self.kernel.code.push(Instr { guard, op, line });
        Ok(())
    }

    pub(super) fn comma(&mut self) -> Result<()> {
        self.expect(b',', ",")
    }

    /// A register that is written.
    pub(super) fn register(&mut self) -> Result<Dst> {
        let name = self.word()?;
        match self.resolve(name)? {
            Some(Symbol::Register(reg, ty)) => Ok(Dst {
                reg,
                bytes: ty.bytes,
            }),
            _ => Err(self.unknown(name)),
        }
    }

    /// A register that is written, or `_`.
    pub(super) fn register_or_sink(&mut self) -> Result<Option<Dst>> {
        if self.peek() == Some(Tok::Word("_")) {
            self.skip();
            return Ok(None);
        }
        self.register().map(Some)
    }

    /// A value that is read, and the comma before it.
    pub(super) fn next(&mut self, ty: Ty) -> Result<Operand> {
        self.comma()?;
        self.value(ty)
    }

    pub(super) fn value(&mut self, ty: Ty) -> Result<Operand> {
        let Some(Tok::Word(word)) = self.peek() else {
            return self.literal(ty).map(Operand::Imm);
        };
        self.skip();
        if word == "WARP_SZ" {
            return Ok(Operand::Imm(32));
        }
        if let Some(special) = special(word) {
            return Ok(Operand::Special(special));
        }
        let operand = self.named(word)?;
        match operand {
            Operand::Global(index, _) if self.eat(b'+') => {
                Ok(Operand::Global(index, self.int()? as i64))
            }
            Operand::Imm(at) if self.eat(b'+') => Ok(Operand::Imm(at.wrapping_add(self.int()?))),
            _ => Ok(operand),
        }
    }

    /// A predicate that is read, perhaps negated.
    pub(super) fn predicate(&mut self) -> Result<(Operand, bool)> {
        let not = self.eat(b'!');
        let operand = match self.peek() {
            Some(Tok::Int(n)) => {
                self.skip();
                Operand::Imm(u64::from(n != 0))
            }
            _ => Operand::Reg(self.register()?.reg),
        };
        Ok((operand, not))
    }

    /// `{a, b}` or one alone.
    pub(super) fn list<T>(&mut self, one: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        if !self.eat(b'{') {
            return Ok(vec![one(self)?]);
        }
        let mut all = vec![one(self)?];
        while self.eat(b',') {
            all.push(one(self)?);
            if all.len() > 8 {
                return Err(self.wrong("at most 8 parts of a vector"));
            }
        }
        self.expect(b'}', "}")?;
        Ok(all)
    }

    /// `[base+offset]`.
    pub(super) fn address(&mut self, space: Space) -> Result<Addr> {
        self.expect(b'[', "[")?;
        let base = match self.peek() {
            Some(Tok::Word(name)) => {
                self.skip();
                self.named(name)?
            }
            _ => Operand::Imm(self.int()?),
        };
        let mut offset = 0_i64;
        if self.eat(b'+') || self.peek() == Some(Tok::Punct(b'-')) {
            offset = self.int()? as i64;
        }
        self.expect(b']', "]")?;
        Ok(Addr {
            space,
            base,
            offset,
        })
    }
}

/// The space that a modifier names.
pub(super) fn space(name: &str) -> Option<Space> {
    Some(match name {
        "global" | "const" => Space::Global,
        "shared" | "shared::cta" => Space::Shared,
        "local" => Space::Local,
        "param" | "param::entry" => Space::Param,
        _ => return None,
    })
}

fn special(name: &str) -> Option<Special> {
    let name = name.strip_prefix('%')?;
    let (stem, axis) = name.split_once('.').unwrap_or((name, ""));
    let axis = match axis {
        "x" | "" => 0,
        "y" => 1,
        "z" => 2,
        _ => return None,
    };
    Some(match stem {
        "tid" => Special::Tid(axis),
        "ntid" => Special::Ntid(axis),
        "ctaid" => Special::Ctaid(axis),
        "nctaid" => Special::Nctaid(axis),
        "laneid" => Special::Lane,
        "warpid" => Special::Warp,
        "nwarpid" => Special::Nwarp,
        "lanemask_eq" => Special::LaneMask(Cmp::Eq),
        "lanemask_lt" => Special::LaneMask(Cmp::Lt),
        "lanemask_le" => Special::LaneMask(Cmp::Le),
        "lanemask_gt" => Special::LaneMask(Cmp::Gt),
        "lanemask_ge" => Special::LaneMask(Cmp::Ge),
        "clock" | "clock64" | "clock_hi" | "globaltimer" => Special::Clock,
        "dynamic_smem_size" => Special::DynamicShared,
        "smid" => Special::Zero,
        _ => return None,
    })
}
