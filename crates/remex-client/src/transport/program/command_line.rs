//! What to start for a connection.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use remex_base::quote::shell_word;

/// A program that speaks the protocol on its standard streams, for example `ssh host remex serve --listen stdio`.
///
/// It lives and dies with the connection: see [`Client`](crate::Client).
///
/// ```
/// use remex_client::{Program, Target};
///
/// let ssh = Program::new("ssh").arg("build.example").args(["remex", "serve", "--listen", "stdio"]);
/// assert_eq!(Target::Program(ssh).to_string(), "`ssh build.example remex serve --listen stdio`");
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Program {
    /// The program; without a slash it is looked up in the `PATH`.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables added to the environment of this process.
    pub env: BTreeMap<String, String>,
    /// The working directory; by default that of this process.
    pub cwd: Option<PathBuf>,
}

impl Program {
    /// Creates a program without arguments; without a slash it is looked up in the `PATH`.
    ///
    /// See [`Program`] for an example.
    pub fn new(program: impl Into<String>) -> Self {
        Self { program: program.into(), ..Self::default() }
    }

    /// Adds an argument.
    ///
    /// See [`Program`] for an example.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    ///
    /// See [`Program`] for an example.
    #[must_use]
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of its environment.
    ///
    /// ```
    /// let program = remex_client::Program::new("agent").env("LANG", "C");
    /// assert_eq!(program.env["LANG"], "C");
    /// ```
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets the working directory.
    ///
    /// ```
    /// let program = remex_client::Program::new("bin/agent").cwd("/srv");
    /// assert_eq!(program.cwd.as_deref(), Some("/srv".as_ref()));
    /// ```
    #[must_use]
    pub fn cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}", shell_word(&self.program))?;
        for arg in &self.args {
            write!(f, " {}", shell_word(arg))?;
        }
        f.write_str("`")
    }
}

/// Hides the values of environment variables.
impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("program", &self.program)
            .field("args", &self.args)
            .field("env", &self.env.keys())
            .field("cwd", &self.cwd)
            .finish()
    }
}
