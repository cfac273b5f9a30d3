//! Options for the environment of a command.
//!
//! Start at [`Variables`].

use std::path::PathBuf;

use clap::Args;

use crate::render::failure::InvalidArg;

/// What a command gets besides the environment that it inherits.
#[derive(Debug, Default, Args)]
pub(crate) struct Variables {
    /// Set an environment variable; without `=VALUE`, pass on the local value
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,

    /// Set the variables in a file of lines `NAME=VALUE`; `NAME` alone passes on the local value, `#` begins a comment;
    /// repeatable, `--env` takes precedence
    #[arg(long, value_name = "PATH")]
    pub(crate) env_file: Vec<PathBuf>,

    /// Set a variable whose value is on no command line: that of the local variable, with `=PATH` the content of a local
    /// file, with `=-` standard input; repeatable
    #[arg(long, value_name = "NAME[=PATH|=-]", value_parser = secret)]
    pub(crate) secret: Vec<Secret>,
}

/// A variable whose value must not be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Secret {
    pub(crate) name: String,
    pub(crate) source: SecretSource,
}

/// Where the value of a secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SecretSource {
    /// In the variable of the same name of this program.
    Variable,
    File(PathBuf),
    Stdin,
}

/// Parses `NAME=VALUE`, or `NAME` for the local value.
pub(crate) fn variable(text: &str) -> Result<(String, String), InvalidArg> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => (text, local(text).ok_or_else(|| unset(text, "add `=VALUE`"))?),
    };
    if name.is_empty() {
        return Err(InvalidArg::new("a variable needs a name", "write `NAME=VALUE`"));
    }
    Ok((name.to_owned(), value))
}

/// Returns the value of a variable of this program.
pub(crate) fn local(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn unset(name: &str, hint: &str) -> InvalidArg {
    InvalidArg::new(format!("`{name}` is not set, or not UTF-8"), hint)
}

// Never fails with what follows the name, because it may be the secret itself.
fn secret(text: &str) -> Result<Secret, InvalidArg> {
    let (name, source) = match text.split_once('=') {
        None => (text, SecretSource::Variable),
        Some((name, "-")) => (name, SecretSource::Stdin),
        Some((name, path)) => (name, SecretSource::File(path.into())),
    };
    Ok(Secret { name: name.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_in_a_variable_a_file_or_on_stdin() {
        let source = |text| secret(text).unwrap().source;
        assert_eq!(source("A"), SecretSource::Variable);
        assert_eq!(source("A=-"), SecretSource::Stdin);
        assert_eq!(source("A=./-"), SecretSource::File("./-".into()));
        assert_eq!(source("A=b=c"), SecretSource::File("b=c".into()));
    }
}
