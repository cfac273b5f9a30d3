//! Parses `ssh` command lines.
//!
//! Start at [`Program::ssh_login`].

use std::path::Path;

use crate::Program;

/// The flags of OpenSSH's `ssh` that are followed by a value.
const WITH_VALUE: &str = "BbcDEeFIiJLlmOoPpQRSWw";

impl Program {
    /// Returns the part of an `ssh` command line that logs in, without the command to run there; `None` for other
    /// programs.
    ///
    /// ```
    /// use remex_client::{Program, Target};
    ///
    /// let Target::Program(program) = Target::program("ssh", ["-p", "2222", "far", "remex", "proxy"]) else {
    ///     unreachable!()
    /// };
    /// assert_eq!(program.ssh_login().unwrap().to_string(), "`ssh -p 2222 far`");
    /// ```
    pub fn ssh_login(&self) -> Option<Self> {
        if Path::new(&self.program).file_name()? != "ssh" {
            return None;
        }
        Some(Self { args: login(&self.args)?.map(str::to_owned).collect(), ..self.clone() })
    }
}

/// Returns the arguments before the command; `None` if they contain no destination.
fn login(args: &[String]) -> Option<impl Iterator<Item = &str>> {
    let mut words = args.iter().map(String::as_str);
    let mut count = 0;
    let mut destination = false;
    // As in ssh itself, flags may also follow the destination, up to the first word of the command.
    while let Some(word) = words.next() {
        let value_follows = match word.strip_prefix('-') {
            Some("-") if destination => break,
            Some("-") => {
                destination = true;
                true
            }
            Some(flags) if !flags.is_empty() => {
                flags.find(|flag| WITH_VALUE.contains(flag)) == Some(flags.len() - 1)
            }
            _ if destination => break,
            _ => {
                destination = true;
                false
            }
        };
        count += 1;
        if value_follows {
            words.next()?;
            count += 1;
        }
    }
    destination.then(|| args[..count].iter().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_to_run_there_is_left_out() {
        let login_of = |line: &str| {
            let mut words = line.split(' ').map(str::to_owned);
            let program =
                Program { program: words.next().unwrap(), args: words.collect(), ..Program::default() };
            program.ssh_login().map(|login| login.to_string())
        };
        for (line, expected) in [
            ("ssh far remex proxy", Some("`ssh far`")),
            (
                "/usr/bin/ssh -p 22 -oBatchMode=yes me@far remex proxy",
                Some("`/usr/bin/ssh -p 22 -oBatchMode=yes me@far`"),
            ),
            ("ssh -Tp 22 far -i key remex -v", Some("`ssh -Tp 22 far -i key`")),
            ("ssh -p22 -- far remex", Some("`ssh -p22 -- far`")),
            ("ssh far", Some("`ssh far`")),
            ("ssh -v", None),
            ("docker exec -i box remex proxy", None),
        ] {
            assert_eq!(login_of(line).as_deref(), expected, "{line}");
        }
    }
}
