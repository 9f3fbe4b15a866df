//! The rows of the table that cross the wire: read, call, answer. Made from the table.

use crate::driver::{Driver, answer};
use crate::kinds::{Call, Fault, Kind};
use ghost_wire::api::{Op, op};
use ghost_wire::kind::*;
use ghost_wire::result::{Code, NOT_SUPPORTED};
use ghost_wire::{Decoder, Encoder, driver_api};
use std::mem::transmute;

/// Reads the arguments of one row, calls `function` (the driver's, of this row) and appends the
/// answer.
type Row = fn(
    function: Option<usize>,
    from: Decoder<'_>,
    call: &mut Call<'_>,
    to: &mut Encoder<'_>,
) -> Result<(), Fault>;

macro_rules! row {
    (local $($rest:tt)*) => { None };
    (syncs $($rest:tt)*) => { None };
    (refused $($rest:tt)*) => { None };
    ($class:ident $symbol:ident ($($arg:ident : $kind:ty),*)) => {
        Some({
            #[allow(non_snake_case, unused_mut, unused_variables)]
            fn $symbol(
                function: Option<usize>,
                mut from: Decoder<'_>,
                call: &mut Call<'_>,
                to: &mut Encoder<'_>,
            ) -> Result<(), Fault> {
                $(let mut $arg = <$kind as Kind>::take(&mut from, call)?;)*
                from.end()?;
                let function = function.ok_or(NOT_SUPPORTED)?;
                // SAFETY: the driver's function of this row: its arguments are of these types.
                let function = unsafe {
                    transmute::<usize, unsafe extern "C" fn($(<$kind as Kind>::C),*) -> Code>(
                        function,
                    )
                };
                // SAFETY: pointers lead into what is held until after the call; handles are the
                // driver's own.
                answer(unsafe { function($(<$kind as Kind>::c(&mut $arg, call)),*) })?;
                $(<$kind as Kind>::done(&$arg, call);)*
                $(<$kind as Kind>::put(&$arg, to, call);)*
                Ok(())
            }
            $symbol as Row
        })
    };
}

macro_rules! rows {
    ({} $($symbol:ident $name:literal $since:literal $variant:ident $class:ident
        $(($($args:tt)*))?;)*) => {
        /// By number; none where nothing crosses.
        static ROWS: &[Option<Row>] = &[$(row!($class $symbol $(($($args)*))?)),*];
    };
}
driver_api!(rows {});

/// `cuStreamBeginCapture_v2` in the mode that one thread for all calls needs: relaxed.
const RELAXED: u64 = 2;

/// Carries out a row; without a driver only reads it.
///
/// # Errors
/// [`Fault`]: of the call, or because there is no such row.
pub(crate) fn run(
    driver: Option<&Driver>,
    number: Op,
    body: &[u8],
    call: &mut Call<'_>,
    to: &mut Encoder<'_>,
) -> Result<(), Fault> {
    let row = ROWS.get(usize::from(number.0)).copied().flatten();
    let row = row.ok_or(ghost_wire::Malformed::Op(number.0))?;
    let function = driver.and_then(|driver| driver.row(number));
    if number == op::cuStreamBeginCapture_v2 {
        let mut from = Decoder::new(body);
        let mut relaxed = Vec::with_capacity(16);
        let mut again = Encoder::new(&mut relaxed);
        again.word(from.word()?);
        from.word()?;
        from.end()?;
        again.word(RELAXED);
        return row(function, Decoder::new(&relaxed), call, to);
    }
    row(function, Decoder::new(body), call, to)
}

/// Reads a row without a driver and without handles.
///
/// # Errors
/// Why it ends the session.
pub(crate) fn read(number: Op, body: &[u8]) -> Result<(), String> {
    let mut handles = crate::handles::Handles::default();
    let mut call = Call::new(&mut handles, 0);
    let mut answer = Vec::new();
    match run(
        None,
        number,
        body,
        &mut call,
        &mut Encoder::new(&mut answer),
    ) {
        Ok(()) | Err(Fault::Code(_)) => Ok(()),
        Err(fault) => Err(fault.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handles::Handles;
    use ghost_wire::api::ENTRIES;
    use ghost_wire::id::Maker;
    use ghost_wire::{Id, Malformed, Object};

    #[test]
    fn what_crosses_has_a_row_and_nothing_else() {
        assert_eq!(ROWS.len(), ENTRIES.len());
        for (row, entry) in ROWS.iter().zip(ENTRIES) {
            assert_eq!(row.is_some(), entry.class.crosses(), "{}", entry.symbol);
        }
    }

    #[test]
    fn a_row_is_read_whole() {
        let mut handles = Handles::default();
        let stream = Id::new(Maker::Client, Object::Stream, 1).raw();
        let inserted = handles.insert(Object::Stream, stream, 9, 0);
        assert_eq!(inserted, Ok(()));
        let mut call = Call::new(&mut handles, 0);
        let mut read = |words: &[u64]| {
            let mut body = vec![];
            let mut to = Encoder::new(&mut body);
            words.iter().for_each(|word| to.word(*word));
            let mut out = vec![];
            run(
                None,
                op::cuMemsetD8Async,
                &body,
                &mut call,
                &mut Encoder::new(&mut out),
            )
        };
        let unserved = Err(Fault::Code(NOT_SUPPORTED));
        assert_eq!(read(&[1 << 40, 0xff, 64, stream]), unserved);
        let wide = Malformed::Range {
            what: "u8",
            value: 0x100,
        };
        assert_eq!(read(&[1 << 40, 0x100, 64, stream]), Err(wide.into()));
        assert_eq!(read(&[1 << 40, 0, 64]), Err(Malformed::Short.into()));
        assert_eq!(
            read(&[1 << 40, 0, 64, stream, 0]),
            Err(Malformed::Left(8).into())
        );
        assert_eq!(read(&[1 << 40, 0, 64, stream + 16]), Err(Fault::Code(400)));
    }
}
