//! Writes a configuration as a documented file.

use std::fmt::Write as _;

use remex_server::Reload;
use toml::Value;

use super::{
    ServerConfig,
    keys::{TABLES, keys},
};

const HEAD: &str = "\
# Configuration of `remex serve --config FILE`; flags override it.
# Paths are relative to this file. SIGHUP reloads it: a broken file changes nothing.
";

pub(super) fn to_toml(config: &ServerConfig) -> String {
    let (mut out, keys, defaults) = (HEAD.to_owned(), keys(), ServerConfig::default());
    for (table, doc) in TABLES {
        if !table.is_empty() {
            let _ = write!(out, "\n# {doc}\n[{table}]\n");
        }
        for key in keys.iter().filter(|key| key.table == table) {
            out.push('\n');
            for line in key.doc {
                let _ = writeln!(out, "# {}", line.trim());
            }
            if let Some(effect) = key.effect {
                let _ = writeln!(out, "# At the limit: {effect}.");
            }
            let default = key.show(&defaults);
            let restart = if key.reload == Reload::Restart { " A change needs a restart." } else { "" };
            let _ = writeln!(out, "# Default: {}.{restart}", default.as_deref().unwrap_or("none"));
            let _ = match key.show(config) {
                Some(value) => writeln!(out, "{} = {value}", key.name),
                None => writeln!(out, "#{} = {}", key.name, key.example),
            };
        }
    }
    out
}

/// Writes a TOML string.
pub(super) fn text(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// Writes a list of TOML strings.
pub(super) fn texts(all: &[String]) -> String {
    format!("[{}]", all.iter().map(|item| text(item)).collect::<Vec<_>>().join(", "))
}
