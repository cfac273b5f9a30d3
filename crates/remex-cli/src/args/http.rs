//! The arguments of `remex http`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::{
    args::shared::On,
    render::{failure::InvalidArg, text::duration},
};

/// Flags of `remex http`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = "remex http [OPTIONS] [METHOD] URL")]
pub(crate) struct Flags {
    /// The method and the URL (`http` or `https`); without a method GET, or POST with `--data`
    #[arg(required = true, num_args = 1..=2, value_names = ["METHOD", "URL"])]
    pub(crate) request: Vec<String>,

    #[command(flatten)]
    pub(crate) on: On,

    /// A header such as `Accept: text/plain`; can be repeated. `Name:` leaves out a header that remex would add
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = header)]
    pub(crate) headers: Vec<HeaderArg>,

    /// A header with a variable of the server's environment at the end of its value, such as
    /// `Authorization: Bearer =TOKEN`, so that the secret stays there; can be repeated
    #[arg(long = "header-from-env", value_name = "NAME: VALUE=VARIABLE", value_parser = header_from_env)]
    pub(crate) headers_from_env: Vec<HeaderFromEnv>,

    /// The body: a text, `@FILE` for the content of a file on this machine, or `@-` for standard input; unchanged, and
    /// joined with `&` if repeated
    #[arg(short, long, value_name = "DATA")]
    pub(crate) data: Vec<String>,

    /// Write the body to this file on this machine, once it is complete
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Print the status and the headers before the body
    #[arg(short, long)]
    pub(crate) include: bool,

    /// Ask for the headers only, and print them
    #[arg(short = 'I', long, conflicts_with_all = ["data", "output"])]
    pub(crate) head: bool,

    /// Follow up to ten redirects
    #[arg(short = 'L', long)]
    pub(crate) location: bool,

    /// Exit with code 22 and without the body if the status is 400 or more
    #[arg(short, long)]
    pub(crate) fail: bool,

    /// The method, as for curl
    #[arg(short = 'X', long = "request", value_name = "METHOD")]
    pub(crate) method: Option<String>,

    /// Give up after this time, with the body included
    #[arg(short = 'm', long, value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
}

/// A header to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeaderArg {
    pub(crate) name: String,
    /// Empty to leave the header out.
    pub(crate) value: String,
}

/// A header whose value ends with a variable of the server's environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeaderFromEnv {
    pub(crate) name: String,
    pub(crate) prefix: String,
    pub(crate) variable: String,
}

fn header(text: &str) -> Result<HeaderArg, InvalidArg> {
    let split = text.split_once(':').map(|(name, value)| (name.trim(), value.trim()));
    let (name, value) = split.filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
        InvalidArg::new("it is not a header", "write `NAME: VALUE`, such as `Accept: text/plain`")
    })?;
    Ok(HeaderArg { name: name.to_owned(), value: value.to_owned() })
}

fn header_from_env(text: &str) -> Result<HeaderFromEnv, InvalidArg> {
    let invalid = || {
        let hint = "write `NAME: VALUE=VARIABLE`, such as `Authorization: Bearer =TOKEN`";
        InvalidArg::new("it is not a header with a variable", hint)
    };
    let (name, value) = text.split_once(':').ok_or_else(invalid)?;
    let (prefix, variable) = value.rsplit_once('=').ok_or_else(invalid)?;
    if name.trim().is_empty() || variable.is_empty() {
        return Err(invalid());
    }
    Ok(HeaderFromEnv {
        name: name.trim().to_owned(),
        // A space at its end separates it from the secret.
        prefix: prefix.trim_start().to_owned(),
        variable: variable.to_owned(),
    })
}

const EXAMPLES: &str = "\
Examples:
  From the network of the environment `build`:
    remex http --on build http://127.0.0.1:8080/health
  With headers and a body:
    remex http --on build POST http://127.0.0.1:8080/jobs -H 'Content-Type: application/json' -d '{\"n\": 7}'
  Fail for an error status, and keep the body in a file:
    remex http --on build -f -o health.txt http://127.0.0.1:8080/health
  Show the headers as well, and follow redirects:
    remex http --on build -i -L http://127.0.0.1:8080/health

The server makes the request: with its network, its proxies and the certificates that it trusts. Without `--on` that is this machine.
With `--data`, the content type is `application/x-www-form-urlencoded` unless a header says otherwise.
An interrupted download leaves the file of `--output` as it was.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_a_name_and_a_value() {
        let parsed = |text: &str| header(text).map(|header| (header.name, header.value)).ok();
        assert_eq!(parsed("Accept: a:b "), Some(("Accept".to_owned(), "a:b".to_owned())));
        assert_eq!(parsed("Accept:"), Some(("Accept".to_owned(), String::new())));
        assert_eq!((parsed("Accept"), parsed(": x")), (None, None));
        let secret = header_from_env("Authorization: Bearer =TOKEN").unwrap();
        assert_eq!((secret.prefix.as_str(), secret.variable.as_str()), ("Bearer ", "TOKEN"));
        assert_eq!(header_from_env("x-key:a=b=KEY").unwrap().prefix, "a=b");
        for wrong in ["TOKEN", "Authorization: Bearer", "Authorization: Bearer =", ":=TOKEN"] {
            assert!(header_from_env(wrong).is_err(), "{wrong}");
        }
    }
}
