//! The variables of a command, from the command line, files and standard input.

use std::{
    fs,
    io::{self, IsTerminal as _, Read as _},
    path::Path,
};

use crate::{
    args::variables::{Secret, SecretSource, Variables, local},
    render::{
        failure::{Failure, Kind},
        text::plain,
    },
};

/// The longest value: the kernel takes no longer variable.
const MOST_BYTES: u64 = 128 << 10;

/// The longest file of variables: more than the kernel takes for all of them.
const MOST_FILE_BYTES: u64 = 8 << 20;

/// Returns the variables in the order in which they are set: files, flags, secrets.
pub(crate) fn read(flags: &Variables) -> Result<Vec<(String, String)>, Failure> {
    let mut variables = Vec::new();
    for path in &flags.env_file {
        variables.extend(in_file(path)?);
    }
    variables.extend(flags.env.iter().cloned());
    let mut stdin = None;
    for secret in &flags.secret {
        if secret.source == SecretSource::Stdin && stdin.replace(&secret.name).is_some() {
            return Err(Failure::usage(
                "only one secret can come from standard input",
                "give the others in files or variables",
            ));
        }
        variables.push((secret.name.clone(), value(secret)?));
    }
    Ok(variables)
}

/// Returns whether standard input holds a secret, so that the command has none.
pub(crate) fn takes_stdin(flags: &Variables) -> bool {
    flags.secret.iter().any(|secret| secret.source == SecretSource::Stdin)
}

fn in_file(path: &Path) -> Result<Vec<(String, String)>, Failure> {
    let what = || format!("cannot read the variables in `{}`", plain(&path.to_string_lossy()));
    let text = fs::File::open(path).and_then(|file| text(file, MOST_FILE_BYTES));
    let text = text.map_err(|error| {
        Failure::usage(what(), "name a text file of lines `NAME=VALUE`").because(error.to_string())
    })?;
    lines(&text)
        .map_err(|(number, why, hint)| Failure::usage(what(), hint).because(format!("line {number} {why}")))
}

/// The number of a line, what is wrong with it, and what to do.
type BadLine = (usize, String, &'static str);

/// Parses lines `NAME=VALUE` and `NAME`. Values are never part of an error.
fn lines(text: &str) -> Result<Vec<(String, String)>, BadLine> {
    let mut variables = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (line.trim_end(), None),
        };
        // A line of a value that has several may be a secret.
        let fits = |letter: char| letter.is_ascii_alphanumeric() || "_.-".contains(letter);
        if name.is_empty()
            || name.starts_with(|letter: char| letter.is_ascii_digit())
            || !name.chars().all(fits)
        {
            return Err((
                number,
                "has no valid name".to_owned(),
                "write `NAME=VALUE`, without `export` or spaces; a value has one line",
            ));
        }
        let value = value.or_else(|| local(name));
        let value = value.ok_or_else(|| {
            (number, "names a variable that is not set".to_owned(), "set it, or write `NAME=VALUE`")
        })?;
        variables.push((name.to_owned(), value));
    }
    Ok(variables)
}

fn value(secret: &Secret) -> Result<String, Failure> {
    let name = plain(&secret.name);
    // The path is not shown: it is the secret itself if someone mistakes the option.
    let what = format!("cannot read the secret `{name}`");
    if name.is_empty() {
        return Err(Failure::usage(
            "a secret needs a name",
            "write `--secret NAME`, or `--secret NAME=PATH`",
        ));
    }
    let read = match &secret.source {
        SecretSource::Variable => {
            return local(&secret.name).ok_or_else(|| {
                let why = "the variable is not set, or not UTF-8";
                Failure::usage(
                    what,
                    format!("set it, or write `--secret {name}=PATH` or `--secret {name}=-`"),
                )
                .because(why)
            });
        }
        SecretSource::File(path) => fs::File::open(path).and_then(|file| text(file, MOST_BYTES)),
        SecretSource::Stdin if io::stdin().is_terminal() => {
            let hint = format!("pipe it, as in `pass show {name} | remex run --secret {name}=- …`");
            return Err(
                Failure::usage(what, hint).because("standard input is a terminal, which would show it")
            );
        }
        SecretSource::Stdin => text(io::stdin(), MOST_BYTES),
    };
    let mut value = read.map_err(|error| {
        let hint = "after `=` comes the path of a file, or `-` for standard input; never the value itself, because \
                    command lines are visible to other users";
        Failure::of(Kind::Usage, what.clone(), hint).because(error.to_string())
    })?;
    if value.ends_with('\n') {
        value.truncate(value.len() - if value.ends_with("\r\n") { 2 } else { 1 });
    }
    if value.contains('\0') {
        return Err(Failure::usage(what, "encode it, for example with base64").because("it has a NUL byte"));
    }
    Ok(value)
}

/// Reads a text of at most `most` bytes.
fn text(from: impl io::Read, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variables_file_is_read_literally() {
        let text = "# comment\n\nA=1\n  B= two words \nC='quoted'=x\r\n";
        let expected = [("A", "1"), ("B", " two words "), ("C", "'quoted'=x")];
        let expected: Vec<_> =
            expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        assert_eq!(lines(text), Ok(expected));
        for (wrong, line) in [("A=1\n=2", 2), ("export A=s3cret", 1), ("\nREMEX_TEST_UNSET_VARIABLE", 2)] {
            let (number, why, _) = lines(wrong).unwrap_err();
            assert!(number == line && !why.contains("s3cret"), "{wrong}: {number} {why}");
        }
    }
}
