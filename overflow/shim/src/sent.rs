//! The senders: for each row that crosses the wire one function, made from the table. Rows of
//! class `posted`, `waited` and `cached` are exported as they are; what is written by hand calls
//! those of `hand_posted` and `hand_waited`.

use crate::kinds::{Call, Kind};
use crate::link::Link;
use crate::session::link;
use ghost_wire::kind::*;
use ghost_wire::result::{Code, SUCCESS};
use ghost_wire::{Decoder, Encoder, Malformed, Op, driver_api};
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

/// Answers that do not change, by the call: row, context, arguments.
static CACHE: RwLock<Option<HashMap<Vec<u8>, Vec<u8>>>> = RwLock::new(None);

/// More answers than this are not kept.
const CACHE_MAX: usize = 1 << 14;

/// Forgets all answers that were kept: for calls that change what such an answer depends on (a
/// function's attributes).
pub(crate) fn forget() {
    *CACHE.write().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Asks once.
fn ask(
    link: &Link,
    op: Op,
    encode: impl Fn(&mut Encoder<'_>),
    decode: impl Fn(&mut Decoder<'_>) -> Result<(), Malformed>,
) -> Result<(), Code> {
    let mut key = Vec::with_capacity(64);
    let mut to = Encoder::new(&mut key);
    to.word(op.0.into());
    to.word(crate::thread::current());
    encode(&mut to);
    {
        let cache = CACHE.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(body) = cache.as_ref().and_then(|cache| cache.get(&key)) {
            return decode(&mut Decoder::new(body)).map_err(|_| ghost_wire::result::UNKNOWN);
        }
    }
    let body = link.wait(op, encode, |from| {
        let body = from.rest().to_vec();
        decode(from)?;
        Ok(body)
    })?;
    let mut cache = CACHE.write().unwrap_or_else(PoisonError::into_inner);
    let cache = cache.get_or_insert_default();
    if cache.len() < CACHE_MAX {
        cache.insert(key, body);
    }
    Ok(())
}

macro_rules! send {
    (posted $link:ident $op:expr, $encode:expr, $decode:expr) => {{
        let _ = $decode;
        match $link.post($op, $encode) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }};
    (hand_posted $($rest:tt)*) => { send!(posted $($rest)*) };
    (cached $link:ident $op:expr, $encode:expr, $decode:expr) => {
        ask($link, $op, $encode, $decode)
    };
    ($class:ident $link:ident $op:expr, $encode:expr, $decode:expr) => {
        $link.wait($op, $encode, $decode)
    };
}

macro_rules! function {
    ($class:ident [$($generic:tt)*] $per_thread:tt $symbol:ident ($($arg:ident : $kind:ty),*)) => {
        #[allow(unused_variables, unused_mut)]
        pub(crate) unsafe extern "C" fn $symbol<$($generic)*>(
            $($arg: <$kind as Kind>::C),*
        ) -> Code {
            let mut call = Call::new($per_thread);
            let sent = || {
                let link = link()?;
                // SAFETY: the arguments are the program's, as `cuda.h` asks for.
                $(let $arg = unsafe { <$kind as Kind>::ready($arg, &mut call) }?;)*
                send!($class link ghost_wire::api::op::$symbol,
                    |to: &mut Encoder<'_>| {
                        $(<$kind as Kind>::put(&$arg, to);)*
                    },
                    |from: &mut Decoder<'_>| -> Result<(), Malformed> {
                        $(<$kind as Kind>::take(&$arg, from)?;)*
                        Ok(())
                    }
                )?;
                $(<$kind as Kind>::done(&$arg);)*
                Ok(())
            };
            let mut sent = sent;
            crate::answer(sent())
        }
    };
}

macro_rules! sender {
    (local $($rest:tt)*) => {};
    (syncs $($rest:tt)*) => {};
    (refused $($rest:tt)*) => {};
    ($class:ident plain $symbol:ident $args:tt) => {
        function!($class [] false $symbol $args);
    };
    ($class:ident $variant:ident $symbol:ident $args:tt) => {
        function!($class [const PT: bool] PT $symbol $args);
    };
}

macro_rules! senders {
    ({} $($symbol:ident $name:literal $since:literal $variant:ident $class:ident
        $(($($args:tt)*))?;)*) => {
        $(sender!($class $variant $symbol $(($($args)*))?);)*
    };
}

driver_api!(senders {});
