//! The size of a terminal.

use std::{fmt, num::NonZeroU16};

use crate::{Error, base::error::usage};

/// The size of a terminal in characters; 24 rows and 80 columns by default.
///
/// ```
/// use remex_client::process::TerminalSize;
///
/// let size = TerminalSize::new(50, 132)?;
/// assert_eq!((size.rows.get(), size.cols.get(), size.to_string().as_str()), (50, 132, "50x132"));
/// assert!(TerminalSize::new(0, 80).is_err());
/// # Ok::<(), remex_client::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TerminalSize {
    /// Its height.
    pub rows: NonZeroU16,
    /// Its width.
    pub cols: NonZeroU16,
}

impl TerminalSize {
    /// Returns a size.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] if one of the numbers is zero.
    ///
    /// See [`TerminalSize`] for an example.
    pub fn new(rows: u16, cols: u16) -> Result<Self, Error> {
        let (Some(rows), Some(cols)) = (NonZeroU16::new(rows), NonZeroU16::new(cols)) else {
            let message = format!("a terminal cannot have {rows} rows and {cols} columns");
            return Err(usage(message, "give at least one row and one column"));
        };
        Ok(Self { rows, cols })
    }
}

impl Default for TerminalSize {
    fn default() -> Self {
        const ROWS: NonZeroU16 = NonZeroU16::new(24).expect("24 is not zero");
        const COLS: NonZeroU16 = NonZeroU16::new(80).expect("80 is not zero");
        Self { rows: ROWS, cols: COLS }
    }
}

impl fmt::Display for TerminalSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.rows, self.cols)
    }
}
