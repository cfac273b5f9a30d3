//! Named environments: hosts to run commands on.
//!
//! [`Definitions`] list them. This module never reads files or variables: the program does, and passes their text. Start at [`Environment`].

mod definition;
mod definition_error;
mod draft;
mod environments;
mod id;
mod parse;

pub use definition::{Definition, Definitions, LocalInclusion};
pub use definition_error::{
    DefinitionError, DefinitionErrorKind, DefinitionErrors, FileError, InvalidVariable, ValueType,
};
pub use draft::Draft;
pub use environments::{Environment, Environments};
pub use id::{Id, InvalidId};
pub use remex_proto::environment::Info;
