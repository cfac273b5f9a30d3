//! The settings of an environment: from flags to the file.

use std::{path::Path, time::Duration};

use remex_client::{Program, Target, environment::Id};
use toml_edit::{Array, Item, RawString, TableLike, Value};

use super::{EnvironmentsFile, Outcome};
use crate::{
    args::env::edit::{Settings, Tls},
    remote::{
        reconnect::FOREVER,
        ssh::{self, Installed, OldServer},
    },
    render::{failure::Failure, print, text},
};

/// The address of a server, as stored in the file; paths are absolute, because relative ones would start at its
/// directory.
pub(super) enum ServerAddress {
    Url(String),
    Program(Program),
}

impl ServerAddress {
    /// Copies this program to the ssh host, prints that, and uses the copy from now on. Returns the server there that still
    /// runs the program from before.
    pub(super) fn install(&mut self) -> Result<Option<OldServer>, Failure> {
        let Self::Program(program) = self else {
            return Err(Failure::usage(
                "cannot install remex",
                "give an address such as `ssh://user@host`, or omit `--install`",
            )
            .because("this address does not use ssh"));
        };
        let mut installed = program.clone();
        ssh::use_installed(&mut installed)?;
        let Installed { summary, old_server } = ssh::install(program)?;
        print::note(summary);
        *program = installed;
        Ok(old_server)
    }
}

impl Settings {
    pub(super) fn is_any(&self) -> bool {
        let Self { url, program, token_file, tls, default, connect_timeout, reconnect, install } = self;
        url.is_some()
            || !program.is_empty()
            || token_file.is_some()
            || tls.is_any()
            || connect_timeout.is_some()
            || reconnect.is_some()
            || *default
            || *install
    }

    pub(super) fn address(&self) -> Result<Option<ServerAddress>, Failure> {
        if let Some(url) = &self.url {
            return Ok(Some(match ssh::target(url)? {
                Target::Unix(path) => ServerAddress::Url(format!("unix://{}", absolute(&path)?)),
                Target::Program(program) => ServerAddress::Program(program),
                _ => ServerAddress::Url(url.clone()),
            }));
        }
        let Some((program, args)) = self.program.split_first() else { return Ok(None) };
        let relative = program.contains('/') && Path::new(program).is_relative();
        let program = if relative { absolute(Path::new(program))? } else { program.clone() };
        Ok(Some(ServerAddress::Program(Program::new(program).args(args))))
    }

    /// Applies the given settings to an environment, and keeps the others.
    pub(super) fn apply(
        &self,
        entry: &mut dyn TableLike,
        address: Option<ServerAddress>,
    ) -> Result<(), Failure> {
        match address {
            Some(ServerAddress::Url(url)) => {
                for key in ["program", "args", "env", "cwd"] {
                    entry.remove(key);
                }
                if !url.starts_with("wss://") {
                    remove_tls(entry);
                }
                put(entry, "url", url.into());
            }
            Some(ServerAddress::Program(program)) => {
                for key in ["url", "auth_bearer_token", "auth_bearer_token_file"] {
                    entry.remove(key);
                }
                remove_tls(entry);
                put(entry, "program", program.program.into());
                put(entry, "args", Value::Array(program.args.iter().collect::<Array>()));
            }
            None => {}
        }
        if let Some(path) = &self.token_file {
            entry.remove("auth_bearer_token");
            put(entry, "auth_bearer_token_file", absolute(path)?.into());
        }
        let Tls { ca, pin, client_cert, client_key } = &self.tls;
        for (key, path) in [("ca", ca), ("client_cert", client_cert), ("client_key", client_key)] {
            if let Some(path) = path {
                put(entry, key, absolute(path)?.into());
            }
        }
        if let Some(pin) = pin {
            put(entry, "pin", pin.as_str().into());
        }
        if let Some(limit) = self.connect_timeout {
            put(entry, "connect_timeout_sec", seconds(limit));
        }
        match self.reconnect {
            Some(FOREVER) => put(entry, "reconnect_timeout_sec", "forever".into()),
            Some(window) => put(entry, "reconnect_timeout_sec", seconds(window)),
            None => {}
        }
        Ok(())
    }

    /// Writes the file, and prints the new address.
    pub(super) fn finish(&self, done: &str, id: &Id, mut file: EnvironmentsFile) -> Outcome {
        if self.default {
            file.set_default(id.as_str());
        }
        let configured = file.save(Some(id))?;
        if let Some(definition) = configured.definitions.find(id) {
            print::out(format!("{done} `{id}`: {}\n", text::plain(&definition.target.to_string())))?;
        }
        print::note(format!("check it with `remex env test {id}`"));
        Ok(0)
    }
}

impl Tls {
    fn is_any(&self) -> bool {
        let Self { ca, pin, client_cert, client_key } = self;
        ca.is_some() || pin.is_some() || client_cert.is_some() || client_key.is_some()
    }
}

fn seconds(time: Duration) -> Value {
    match i64::try_from(time.as_secs()) {
        Ok(seconds) if time.subsec_nanos() == 0 => Value::from(seconds),
        _ => Value::from(time.as_secs_f64()),
    }
}

/// Removes the keys that are valid only with a `wss://` address.
fn remove_tls(entry: &mut dyn TableLike) {
    for key in ["ca", "pin", "client_cert", "client_key"] {
        entry.remove(key);
    }
}

/// Sets the value of a key; keeps comments.
fn put(entry: &mut dyn TableLike, key: &str, new: Value) {
    match entry.get_mut(key).and_then(Item::as_value_mut) {
        Some(before) => {
            let decor = before.decor().clone();
            *before = new;
            *before.decor_mut() = decor;
        }
        None => {
            // The space before the closing brace of an inline table belongs to its last value.
            if let Some(last) = entry.iter_mut().last().and_then(|(_, item)| item.as_value_mut())
                && last
                    .decor()
                    .suffix()
                    .and_then(RawString::as_str)
                    .is_some_and(|suffix| suffix.trim().is_empty())
            {
                last.decor_mut().set_suffix("");
            }
            entry.insert(key, Item::Value(new));
        }
    }
}

fn absolute(path: &Path) -> Result<String, Failure> {
    let absolute = std::path::absolute(path)
        .map_err(|error| Failure::io(&format!("find `{}`", path.display()), &error))?;
    absolute.into_os_string().into_string().map_err(|path| {
        Failure::usage(
            format!("`{}` is not UTF-8, which the environments file requires", path.to_string_lossy()),
            "rename it",
        )
    })
}
