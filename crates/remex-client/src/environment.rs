//! Which places there are to run things, as plain values.
//!
//! Reads no files and no variables: the program does, and hands over their text. Start at [`Definitions`].

mod definition;
mod draft;
mod id;
mod mistake;
mod parse;

pub use definition::{Definition, Definitions, Local};
pub use draft::Draft;
pub use id::{Id, InvalidId};
pub use mistake::{Fault, InvalidVariable, Kind, Mistake, Mistakes};
