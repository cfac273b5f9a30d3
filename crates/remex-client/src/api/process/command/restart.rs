//! Commands that are restarted when they end, or on request.

use remex_proto::process::Restart;

use super::Command;

impl Command {
    /// Runs it again when it ends, after 100 ms, and twice as long each time up to a minute; after a run of 10 s it is
    /// 100 ms again.
    ///
    /// All runs are one process: its output is that of all of them, with a line on standard error before each restart, and its
    /// exit that of the last one. A program that cannot be found is not run again, and none that ends after SIGTERM, or within
    /// 10 s after SIGHUP, SIGINT or SIGQUIT. A durable process does not need its server for that.
    ///
    /// Only a server of the program `remex` supports it.
    ///
    /// ```no_run
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex_client::Target::parse("unix:///run/remex.sock")?).await?;
    /// use remex_client::{Command, process::Restart};
    ///
    /// let worker = Command::new("worker").restart(Restart::on_failure().at_most(5)).start(&client).await?;
    /// # Ok(()) }
    /// ```
    pub fn restart(mut self, restart: Restart) -> Self {
        self.restart = Some(restart);
        self
    }

    /// Lets the server keep the request of its start in memory, so that
    /// [`ProcessRef::restart`](crate::api::process::ProcessRef::restart) can repeat it; a server that cannot do that starts it all the
    /// same.
    pub fn restartable(mut self) -> Self {
        self.is_restartable = true;
        self
    }
}
