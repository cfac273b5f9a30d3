//! Definitions whose token files have not been read yet.
//!
//! Start at [`Draft`].

use std::path::{Path, PathBuf};

use super::{DefinitionError, DefinitionErrorKind, DefinitionErrors, Definitions, FileError};
use crate::Target;

/// The result of [`Definitions::parse`]: everything except the tokens stored in separate files.
///
/// ```
/// use std::path::Path;
/// use remex_client::environment::Definitions;
///
/// let draft = Definitions::parse("include_locale = true", Path::new("environments.toml"))?;
/// assert!(draft.warnings[0].to_string().starts_with("environments.toml:1: "));
/// # Ok::<(), remex_client::environment::DefinitionErrors>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// Problems that do not make the file unusable.
    pub warnings: Vec<DefinitionError>,
    pub(super) definitions: Definitions,
    pub(super) token_files: Vec<TokenFile>,
}

/// A token that is stored in a separate file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenFile {
    /// The index of the definition that needs it.
    pub(super) index: usize,
    pub(super) path: PathBuf,
    /// Where the token file is named, for error messages.
    pub(super) file: PathBuf,
    pub(super) line: usize,
}

impl Draft {
    /// Returns whether the text itself contains a token, so that the file should be private.
    ///
    /// ```
    /// use std::path::Path;
    /// use remex_client::environment::Definitions;
    ///
    /// let text = "environments = [{ id = 'dev', url = 'ws://dev', auth_bearer_token = 's3cret' }]";
    /// assert!(Definitions::parse(text, Path::new("environments.toml"))?.has_token());
    /// # Ok::<(), remex_client::environment::DefinitionErrors>(())
    /// ```
    pub fn has_token(&self) -> bool {
        let bearers =
            self.definitions.environments.iter().filter_map(|definition| match &definition.target {
                Target::WebSocket(socket) => socket.bearer.as_ref(),
                _ => None,
            });
        bearers.count() > 0
    }

    /// Reads the tokens from their files with `read`; surrounding white space is removed.
    ///
    /// # Errors
    ///
    /// [`DefinitionErrors`] with every file that cannot be read, is empty, or contains no valid token.
    ///
    /// ```
    /// use std::path::Path;
    /// use remex_client::environment::Definitions;
    ///
    /// let text = r#"
    /// [[environments]]
    /// id = "dev"
    /// url = "ws://dev:4000"
    /// auth_bearer_token_file = "dev.token"
    /// "#;
    /// let draft = Definitions::parse(text, Path::new("/etc/remex/environments.toml")).unwrap();
    /// let definitions = draft.with_tokens(|path| {
    ///     assert_eq!(path, Path::new("/etc/remex/dev.token"));
    ///     Ok("s3cret\n".to_owned())
    /// });
    /// assert!(!format!("{:?}", definitions.unwrap()).contains("s3cret"));
    /// ```
    pub fn with_tokens(
        self,
        read: impl FnMut(&Path) -> Result<String, FileError>,
    ) -> Result<Definitions, DefinitionErrors> {
        let (definitions, errors) = self.with_readable_tokens(read);
        if errors.is_empty() { Ok(definitions) } else { Err(DefinitionErrors(errors)) }
    }

    /// Reads the available tokens, as [`Draft::with_tokens`] does, and returns an error for each of the others.
    ///
    /// Environments with an error have no token; report the error instead of connecting to them.
    ///
    /// ```
    /// use std::{io, path::Path};
    /// use remex_client::environment::Definitions;
    ///
    /// let text = "environments = [{ id = 'dev', url = 'ws://dev', auth_bearer_token_file = 'gone' }]";
    /// let draft = Definitions::parse(text, Path::new("environments.toml")).unwrap();
    /// let (definitions, errors) = draft.with_readable_tokens(|_| Err(io::Error::from(io::ErrorKind::NotFound).into()));
    /// assert_eq!(definitions.environments.len(), 1);
    /// assert_eq!(errors[0].environment.as_deref(), Some("dev"));
    /// ```
    pub fn with_readable_tokens(
        self,
        mut read: impl FnMut(&Path) -> Result<String, FileError>,
    ) -> (Definitions, Vec<DefinitionError>) {
        let mut definitions = self.definitions;
        let mut errors = Vec::new();
        for TokenFile { index, path, file, line } in self.token_files {
            let definition = &mut definitions.environments[index];
            match (token(&path, read(&path)), &mut definition.target) {
                (Ok(token), Target::WebSocket(socket)) => socket.bearer = Some(token),
                (Ok(_), _) => {}
                (Err(kind), _) => {
                    let environment = Some(definition.id.to_string());
                    errors.push(DefinitionError { file, line, environment, kind });
                }
            }
        }
        (definitions, errors)
    }
}

/// Returns whether a text can be sent as a bearer token.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn token(path: &Path, text: Result<String, FileError>) -> Result<String, DefinitionErrorKind> {
    let path = path.to_owned();
    match text {
        Err(error) => Err(DefinitionErrorKind::TokenFile { path, error }),
        Ok(text) if text.trim().is_empty() => Err(DefinitionErrorKind::EmptyTokenFile { path }),
        Ok(text) if is_token(text.trim()) => Ok(text.trim().to_owned()),
        Ok(_) => Err(DefinitionErrorKind::Token),
    }
}
