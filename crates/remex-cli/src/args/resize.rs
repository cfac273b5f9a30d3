//! The arguments of `remex resize`.

use std::num::NonZeroU16;

use clap::Args;

use crate::args::shared::On;

/// Flags of `remex resize`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The process, by its name or an unambiguous prefix
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// The new size, such as `40x120`
    #[arg(value_name = "ROWSxCOLS", value_parser = size)]
    pub(crate) size: (NonZeroU16, NonZeroU16),

    #[command(flatten)]
    pub(crate) on: On,
}

const EXAMPLES: &str = "\
Examples:
  40 rows of 120 columns:
    remex resize build 40x120
";

pub(crate) fn size(text: &str) -> Result<(NonZeroU16, NonZeroU16), String> {
    let wrong = || "expected rows and columns, such as `40x120`, from 1 to 65535 each".to_owned();
    let (rows, cols) = text.split_once(['x', 'X', '×']).ok_or_else(wrong)?;
    Ok((rows.parse().map_err(|_| wrong())?, cols.parse().map_err(|_| wrong())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_rows_and_columns() {
        let size_of = |text| size(text).map(|(rows, cols)| (rows.get(), cols.get()));
        assert_eq!(size_of("40x120"), Ok((40, 120)));
        for wrong in ["", "x", "40", "0x1", "1x0", "40x120x3", "65536x1", "-1x2"] {
            assert!(size_of(wrong).is_err(), "{wrong}");
        }
    }
}
