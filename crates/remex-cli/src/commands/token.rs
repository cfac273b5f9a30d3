//! `remex token`: makes capability tokens and signed JWTs, and shows what a JWT claims.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
    time::{Duration, SystemTime},
};

use remex_server::{
    Scopes, TokenGrant,
    token::{SignError, SigningKey, TokenFile, decode_unverified},
};
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::Outcome;
use crate::{
    args::token::{Command, Flags, Jwks, New, Show},
    render::{failure::Failure, print},
};

/// Bytes of a new token: 256 bits.
const TOKEN_LEN: usize = 32;

pub(crate) fn run(flags: &Flags) -> Outcome {
    match &flags.command {
        Command::New(flags) => new(flags),
        Command::Jwks(flags) => jwks(flags),
        Command::Show(flags) => show(flags),
    }
}

fn new(flags: &New) -> Outcome {
    let scopes = flags
        .scope
        .as_deref()
        .map(str::parse::<Scopes>)
        .transpose()
        .map_err(|error| Failure::usage(format!("cannot use `--scope`: {error}"), error.hint()))?;
    let key = match (&flags.secret_file, &flags.key) {
        (Some(path), _) => read_key(path, SigningKey::shared_secret).map_err(Failure::named_by_flag)?,
        (None, Some(path)) => read_key(path, SigningKey::ed25519).map_err(Failure::named_by_flag)?,
        (None, None) => return capability(flags, scopes.as_ref()),
    };
    signed(flags, scopes.as_ref(), &key)
}

#[allow(clippy::print_stderr)] // A person reads it; the token alone goes to stdout.
fn capability(flags: &New, scopes: Option<&Scopes>) -> Outcome {
    let signed =
        [("--subject", &flags.subject), ("--issuer", &flags.issuer), ("--audience", &flags.audience)];
    if let Some((flag, _)) = signed.into_iter().find(|(_, value)| value.is_some()) {
        return Err(Failure::usage(
            format!("`{flag}` has no effect on a capability token"),
            "add `--secret-file PATH` or `--key PATH` to sign a JWT",
        ));
    }
    let token = random_token()?;
    let mut line = token.clone();
    if let Some(name) = &flags.name {
        line.push_str(&format!(" name={name}"));
    }
    if let Some(scopes) = scopes {
        line.push_str(&format!(" scope={}", scopes.to_string().replace(' ', ",")));
    }
    if let Some(time) = flags.expires {
        let at = OffsetDateTime::from(expiry(time)?).replace_nanosecond(0).map_err(|_| too_far())?;
        line.push_str(&format!(" expires={}", at.format(&Rfc3339).map_err(|_| too_far())?));
    }
    // A token that the server would refuse is not printed.
    TokenFile::parse(&line).map_err(|error| {
        Failure::usage(
            format!("cannot make such a token: {error}"),
            "check `--name`, `--scope` and `--expires`",
        )
    })?;
    print::out(format!("{line}\n"))?;
    let digest: String =
        TokenGrant::new("", &token, Scopes::all()).sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    let attributes = &line[token.len()..];
    warn_if_dead(flags.expires);
    eprintln!(
        "the line on standard output belongs in the file of `remex serve --ws-auth capability-token --ws-token-file FILE`;\n\
         to keep the token itself off the server, use this line there instead:\n  sha256:{digest}{attributes}\n\
         clients present the token: save the line to a file with mode 600, and run\n  \
         remex env add NAME URL --token-file FILE"
    );
    Ok(0)
}

#[allow(clippy::print_stderr)] // A person reads it; the token alone goes to stdout.
fn signed(flags: &New, scopes: Option<&Scopes>, key: &SigningKey) -> Outcome {
    let time = flags.expires.ok_or_else(|| {
        Failure::usage("a JWT needs an expiry", "add `--expires TIME`, such as `--expires 8h`")
    })?;
    let seconds = |time: SystemTime| {
        time.duration_since(SystemTime::UNIX_EPOCH).map(|time| time.as_secs()).unwrap_or_default()
    };
    let mut claims = json!({"iat": seconds(SystemTime::now()), "exp": seconds(expiry(time)?)});
    let texts =
        [("sub", flags.subject.clone()), ("iss", flags.issuer.clone()), ("aud", flags.audience.clone())];
    for (name, value) in texts.into_iter().chain([("scope", scopes.map(ToString::to_string))]) {
        if let Some(value) = value {
            claims[name] = value.into();
        }
    }
    print::out(format!("{}\n", key.sign(&claims)))?;
    warn_if_dead(flags.expires);
    eprintln!(
        "clients present it as it is: save it to a file with mode 600, and run\n  \
         remex env add NAME URL --token-file FILE"
    );
    Ok(0)
}

/// Says that no server accepts a token any more that was just made; its expiry is in whole seconds.
fn warn_if_dead(expires: Option<Duration>) {
    if expires.is_some_and(|time| time < Duration::from_secs(1)) {
        print::note(
            "this token has expired already, so every server refuses it; give `--expires` a longer time, such as `8h`",
        );
    }
}

fn jwks(flags: &Jwks) -> Outcome {
    let key = read_key(&flags.key, SigningKey::ed25519)?;
    let jwks = key.jwks().unwrap_or_default();
    print::out(format!("{jwks:#}\n"))?;
    Ok(0)
}

#[allow(clippy::print_stderr)] // A person reads it.
fn show(flags: &Show) -> Outcome {
    let token = match flags.token.as_str() {
        "-" => {
            let mut text = String::new();
            io::stdin()
                .take(1 << 20)
                .read_to_string(&mut text)
                .map_err(|error| Failure::io("read stdin", &error))?;
            text
        }
        token => token.to_owned(),
    };
    let (header, mut claims) = decode_unverified(token.trim()).map_err(|error| {
        Failure::usage(
            error.to_string(),
            "give the JWT itself, or `-` and the file on standard input; a capability token has no claims to show",
        )
    })?;
    for name in ["exp", "nbf", "iat"] {
        let time = claims[name].as_i64().and_then(|time| OffsetDateTime::from_unix_timestamp(time).ok());
        if let Some(text) = time.and_then(|time| time.format(&Rfc3339).ok()) {
            claims[name] = Value::String(text);
        }
    }
    print::out(format!("{:#}\n", json!({"header": header, "claims": claims})))?;
    eprintln!("not verified: anyone can write such a token, and only the server checks its signature");
    Ok(0)
}

fn random_token() -> Result<String, Failure> {
    let mut bytes = [0; TOKEN_LEN];
    getrandom::fill(&mut bytes).map_err(|error| {
        Failure::new(format!("cannot get random bytes: {error}"), "check the kernel of this host")
    })?;
    // Hexadecimal survives every shell, header and file.
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn expiry(time: Duration) -> Result<SystemTime, Failure> {
    /// Longer than anyone waits, and before the year 9999.
    const MAX: Duration = Duration::from_secs(1000 * 365 * 24 * 3600);
    SystemTime::now().checked_add(time).filter(|_| time <= MAX).ok_or_else(too_far)
}

fn too_far() -> Failure {
    Failure::usage("the expiry is too far away", "give a shorter time, such as `--expires 365d`")
}

fn read_key(
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<SigningKey, SignError>,
) -> Result<SigningKey, Failure> {
    let bytes = fs::read(path).map_err(|error| {
        Failure::io(&format!("read `{}`", path.display()), &error)
            .with_hint("check the path and its permissions")
    })?;
    parse(&bytes).map_err(|error| {
        Failure::new(format!("cannot sign with `{}`", path.display()), error.hint())
            .because(error.to_string())
    })
}
