//! When a command is run again, as people type it: `on-failure:5`.

use remex_client::process::Restart;

use crate::render::failure::InvalidArg;

/// What can be typed, each with its meaning.
pub(super) const POLICIES: [(&str, &str); 3] = [
    ("on-failure", "when it fails"),
    ("on-failure:5", "when it fails, 5 times at most"),
    ("always", "whenever it ends"),
];

/// Parses `on-failure`, `always`, or either with a number after a colon.
pub(crate) fn restart(text: &str) -> Result<Restart, InvalidArg> {
    let (word, most) = text.split_once(':').map_or((text, None), |(word, most)| (word, Some(most)));
    let restart = match word {
        "on-failure" => Restart::on_failure(),
        "always" => Restart::always(),
        _ => {
            let what = format!("`{word}` does not say when to run it again");
            return Err(InvalidArg::new(what, "use `on-failure`, `on-failure:N` or `always`"));
        }
    };
    let Some(most) = most else { return Ok(restart) };
    let most = most.parse().map_err(|_| {
        InvalidArg::new(
            format!("`{most}` is not a number of restarts"),
            format!("write `{word}:5`, for example"),
        )
    })?;
    Ok(restart.at_most(most))
}
