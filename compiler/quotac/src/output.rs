//! Standard output whose reader may go away.

use std::io::{ErrorKind, Result, Write};

/// A writer that stays silent once nobody reads it any more, so that `quotac check | head` ends as it would have ended.
/// Every other error is passed on.
#[derive(Debug)]
pub struct Forgiving<W> {
    /// `None` once the reader is gone.
    inner: Option<W>,
}

impl<W: Write> Forgiving<W> {
    /// Wraps `inner`.
    pub const fn new(inner: W) -> Self {
        Self { inner: Some(inner) }
    }

    fn until_closed(&mut self, write: impl FnOnce(&mut W) -> Result<()>) -> Result<()> {
        let Some(inner) = &mut self.inner else {
            return Ok(());
        };
        match write(inner) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.inner = None;
                Ok(())
            }
            result => result,
        }
    }
}

impl<W: Write> Write for Forgiving<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.until_closed(|inner| inner.write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        self.until_closed(W::flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fails(ErrorKind);

    impl Write for Fails {
        fn write(&mut self, _: &[u8]) -> Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_reader_that_went_away_is_no_error() {
        let mut out = Forgiving::new(Fails(ErrorKind::BrokenPipe));
        assert!(writeln!(out, "report").is_ok());
        assert!(out.flush().is_ok());
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let mut out = Forgiving::new(Fails(ErrorKind::StorageFull));
        assert!(writeln!(out, "report").is_err());
    }
}
