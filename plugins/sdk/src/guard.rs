//! Panics stop here: none may cross the boundary, not even the one of dropping a payload.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `call`; the panic's message if it panics.
///
/// Asserted unwind-safe: a backend that panicked in one call is asked again with whatever state it left, which is what
/// its own locks and types must survive; the SDK itself keeps no state across a call.
#[inline]
pub(crate) fn guarded<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(message)
}

#[cold]
fn message(payload: Box<dyn Any + Send>) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned());
    // A payload's destructor is the author's code and may panic as well; that second payload is leaked, which ends it.
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
    text.map_or_else(
        || "the backend panicked".to_owned(),
        |text| format!("the backend panicked: {text}"),
    )
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("again");
        }
    }

    #[test]
    fn a_panic_ends_in_its_message() {
        assert_eq!(guarded(|| 7), Ok(7));
        assert_eq!(
            guarded(|| panic!("no {}", 1)).map(|(): ()| ()),
            Err("the backend panicked: no 1".to_owned())
        );
    }

    #[test]
    fn a_payload_that_panics_when_dropped_is_contained() {
        assert_eq!(
            guarded(|| panic_any(Bomb)).map(|(): ()| ()),
            Err("the backend panicked".to_owned())
        );
    }
}
