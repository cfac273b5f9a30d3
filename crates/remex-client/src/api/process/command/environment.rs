//! The environment of a command.

use super::{Command, Inherit, Secrets};

impl Command {
    /// Sets an environment variable.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let output = Command::shell("echo $GREETING").env("GREETING", "hello").output(&client).await?;
    /// assert_eq!(output.stdout, b"hello\n");
    /// # Ok(()) }
    /// ```
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets environment variables.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let output = Command::shell("echo $A$B").envs([("A", "1"), ("B", "2")]).output(&client).await?;
    /// assert_eq!(output.stdout, b"12\n");
    /// # Ok(()) }
    /// ```
    pub fn envs<N: Into<String>, V: Into<String>>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        self.env.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Sets which variables of the server's environment it inherits.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::Inherit};
    ///
    /// let output = Command::new("/usr/bin/env").inherit(Inherit::None).env("ONLY", "this").output(&client).await?;
    /// assert_eq!(output.stdout, b"ONLY=this\n");
    /// # Ok(()) }
    /// ```
    pub fn inherit(mut self, inherit: Inherit) -> Self {
        self.inherit = inherit;
        self
    }

    /// Sets whether it inherits variables that look like secrets.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use remex_client::{Client, Command, process::Secrets};
    ///
    /// let mut config = remex::config_from_env();
    /// config.host_env.push(("API_TOKEN".into(), "s3cret".into()));
    /// let client = Client::connect(remex::Local::new(config)?.target()).await?;
    /// let command = Command::shell("echo ${API_TOKEN-none}");
    /// assert_eq!(command.clone().output(&client).await?.stdout, b"none\n");
    /// assert_eq!(command.secrets(Secrets::Inherited).output(&client).await?.stdout, b"s3cret\n");
    /// # Ok(()) }
    /// ```
    pub fn secrets(mut self, secrets: Secrets) -> Self {
        self.secrets = secrets;
        self
    }

    /// Does not inherit the variables whose names match this pattern, in which `*` and `?` are wildcards and case does
    /// not matter.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let output = Command::new("env").env_exclude("H*").output(&client).await?;
    /// assert!(!String::from_utf8(output.stdout)?.lines().any(|line| line.starts_with("HOME=")));
    /// # Ok(()) }
    /// ```
    pub fn env_exclude(mut self, pattern: impl Into<String>) -> Self {
        self.env_exclude.push(pattern.into());
        self
    }

    /// Inherits only the variables whose names match one of these patterns, in which `*` and `?` are wildcards and case
    /// does not matter.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let output = Command::new("/usr/bin/env").env_include_only(["PATH"]).output(&client).await?;
    /// let environment = String::from_utf8(output.stdout)?;
    /// assert!(environment.lines().all(|line| line.starts_with("PATH=")));
    /// # Ok(()) }
    /// ```
    pub fn env_include_only<P: Into<String>>(mut self, patterns: impl IntoIterator<Item = P>) -> Self {
        self.env_include_only.extend(patterns.into_iter().map(Into::into));
        self
    }
}
