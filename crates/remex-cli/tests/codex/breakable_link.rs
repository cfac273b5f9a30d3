//! A connection that can be cut.

use std::{
    io,
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

/// Stands between the client and the server, and forwards every byte until it is cut.
pub(crate) struct Cable {
    address: String,
    /// Both halves of every connection; locked while the cable is cut.
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Cable {
    /// Leads to the server at `ws://IP:PORT`.
    pub(crate) fn to(url: &str) -> Self {
        let server = url.strip_prefix("ws://").expect("the server listens for WebSockets").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("a listener has an address").to_string();
        let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let cable = Self { address, streams: Arc::clone(&streams) };
        thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.expect("a listener accepts");
                let mut streams = streams.lock().expect("nobody panics with it");
                let far = TcpStream::connect(&server).expect("the server accepts");
                forward(&near, &far);
                forward(&far, &near);
                streams.extend([near, far]);
            }
        });
        cable
    }

    /// Returns the URL of the near end.
    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Cuts every connection; new ones are made when what is returned is dropped.
    pub(crate) fn cut(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        let mut streams = self.streams.lock().expect("nobody panics with it");
        assert!(!streams.is_empty(), "there is a connection to cut");
        for stream in streams.drain(..) {
            // Whoever closed it before has cut it too.
            let _ = stream.shutdown(Shutdown::Both);
        }
        streams
    }
}

fn forward(from: &TcpStream, to: &TcpStream) {
    let mut from = from.try_clone().expect("a socket can be shared");
    let mut to = to.try_clone().expect("a socket can be shared");
    thread::spawn(move || {
        // An error is an end like any other.
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
}
