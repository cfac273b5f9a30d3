//! How long a call takes that asks for nothing.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context, Result, ensure};
use remex_proto::environment::GetStatus;
use tokio::{runtime::Runtime, sync::mpsc};

use super::{Figures, Goal, Measure, Row, Samples, Scale, Unit};
use crate::{server::Server, way::Way};

macro_rules! call {
    ($name:literal, $way:expr, $words:literal, $bare:expr $(, $row:expr)?) => {
        Measure {
            name: $name,
            server: |server, scale| call(server, scale, $way),
            bare: Some($bare),
            rows: &[
                Row::against_bare(
                    concat!("client: empty call ", $words, ", p50"),
                    Unit::Microseconds,
                    "p50",
                    Goal::None,
                ),
                Row::against_bare(
                    concat!("client: empty call ", $words, ", p99"),
                    Unit::Microseconds,
                    "p99",
                    Goal::None,
                ),
                $($row,)?
            ],
        }
    };
}

/// How much of a call is the client.
const AGAINST_WIRE: Row =
    Row::alone("client: that p50 over the wire client's", Unit::Count, "over-wire", Goal::None);

pub(crate) const CALL_IN_PROCESS: Measure =
    call!("client-call-in-process", Way::InProcess, "in process", bare_channel);
pub(crate) const CALL_UNIX: Measure =
    call!("client-call-unix", Way::Unix, "over a unix socket", bare_unix, AGAINST_WIRE);
pub(crate) const CALL_WEBSOCKET: Measure =
    call!("client-call-ws", Way::WebSocket, "over a WebSocket", bare_tcp, AGAINST_WIRE);
pub(crate) const CALL_STDIO: Measure = call!("client-call-stdio", Way::Stdio, "to a child", bare_child);

fn call(server: &Server, scale: &Scale, way: Way) -> Result<Figures> {
    let mut samples = Samples::new(scale.questions);
    let mut figures = way.measure(server, move |client| async move {
        while samples.begin() {
            client.call(GetStatus {}).await?;
            samples.end();
        }
        Ok(samples.figures())
    })?;
    let wire = match way {
        Way::WebSocket => wire_websocket(server, scale)?,
        Way::Unix => wire_unix(server, scale)?,
        Way::InProcess | Way::Stdio => Vec::new(),
    };
    if let ([(_, ours), ..], [(_, wire), ..]) = (&figures[..], &wire[..]) {
        figures.push(("over-wire", ours / wire));
    }
    Ok(figures)
}

fn wire_websocket(server: &Server, scale: &Scale) -> Result<Figures> {
    let mut client = server.connect()?;
    let mut samples = Samples::new(scale.questions);
    while samples.begin() {
        client.ask("environment/status", "{}")?;
        client.next_reply()?;
        samples.end();
    }
    Ok(samples.figures())
}

/// The same with one line there and one line back.
fn wire_unix(server: &Server, scale: &Scale) -> Result<Figures> {
    let Some(ours) = server.ours() else { return Ok(Vec::new()) };
    let mut stream = BufReader::new(UnixStream::connect(ours.socket())?);
    let mut line = Vec::new();
    let mut ask = |request: &str| -> Result<()> {
        stream.get_mut().write_all(request.as_bytes())?;
        line.clear();
        stream.read_until(b'\n', &mut line)?;
        ensure!(line.starts_with(br#"{"id":"#), "the server answered `{}`", String::from_utf8_lossy(&line));
        Ok(())
    };
    ask("{\"id\":1,\"method\":\"initialize\",\"params\":{\"clientName\":\"remex-bench\"}}\n")?;
    let initialized = "{\"method\":\"initialized\",\"params\":{}}\n";
    let mut samples = Samples::new(scale.questions);
    ask(&format!("{initialized}{{\"id\":2,\"method\":\"environment/status\",\"params\":{{}}}}\n"))?;
    while samples.begin() {
        ask("{\"id\":3,\"method\":\"environment/status\",\"params\":{}}\n")?;
        samples.end();
    }
    Ok(samples.figures())
}

/// A byte to another task and back.
fn bare_channel(scale: &Scale) -> Result<Figures> {
    let mut samples = Samples::new(scale.questions);
    Runtime::new()?.block_on(async {
        let (sender, mut far_receiver) = mpsc::channel::<u8>(1);
        let (far_sender, mut receiver) = mpsc::channel::<u8>(1);
        tokio::spawn(async move {
            while let Some(byte) = far_receiver.recv().await {
                if far_sender.send(byte).await.is_err() {
                    break;
                }
            }
        });
        tokio::spawn(async move {
            while samples.begin() {
                sender.send(b'x').await?;
                receiver.recv().await.context("the other task has ended")?;
                samples.end();
            }
            Ok(samples.figures())
        })
        .await?
    })
}

/// A byte to another thread and back.
fn bare_unix(scale: &Scale) -> Result<Figures> {
    let (near, far) = UnixStream::pair()?;
    let echo = thread::spawn(move || send_back(&far, &far));
    let figures = round_trips(scale, &near, &near)?;
    drop(near);
    echo.join().expect("the echo returns its errors")?;
    Ok(figures)
}

fn bare_tcp(scale: &Scale) -> Result<Figures> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let echo = thread::spawn(move || send_back(&far, &far));
    let figures = round_trips(scale, &near, &near)?;
    drop(near);
    echo.join().expect("the echo returns its errors")?;
    Ok(figures)
}

/// A byte to `cat` and back.
fn bare_child(scale: &Scale) -> Result<Figures> {
    let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let stdin = cat.stdin.take().context("`cat` has no stdin")?;
    let stdout = cat.stdout.take().context("`cat` has no stdout")?;
    let figures = round_trips(scale, stdout, stdin);
    cat.wait()?;
    figures
}

fn round_trips(scale: &Scale, mut reader: impl Read, mut writer: impl Write) -> Result<Figures> {
    let mut samples = Samples::new(scale.questions);
    while samples.begin() {
        writer.write_all(b"x")?;
        reader.read_exact(&mut [0])?;
        samples.end();
    }
    Ok(samples.figures())
}

fn send_back(mut reader: impl Read, mut writer: impl Write) -> Result<()> {
    let mut byte = [0];
    while reader.read(&mut byte)? > 0 {
        writer.write_all(&byte)?;
    }
    Ok(())
}
