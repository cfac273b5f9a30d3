//! Places to run things, by name.
//!
//! [`Definitions`] say which there are. Nothing here reads files or variables: the program does, and hands over their
//! text. Start at [`Environment`].

mod definition;
mod draft;
mod id;
mod mistake;
mod parse;
mod place;

pub use definition::{Definition, Definitions, Local};
pub use draft::Draft;
pub use id::{Id, InvalidId};
pub use mistake::{Fault, InvalidVariable, Kind, Mistake, Mistakes};
pub use place::{Environment, Environments};
pub use remex_proto::environment::Info;
