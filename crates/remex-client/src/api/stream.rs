//! Events, lines, changes and bytes as streams, for the combinators of `futures` and `tokio-stream`.
//!
//! Each method takes a source and returns a stream of what it returns one by one; start at [`Events::into_stream`].

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_core::Stream;

use crate::{
    Error,
    api::{
        fs::{Changes, DirectoryEntry, Download, Pages, Watch},
        http::Body,
        process::{Event, Events, Line, Lines, Reader},
        session::{SessionEvent, SessionEvents},
    },
};

/// The future of the next item, which owns its source.
type Next<S, T> = Pin<Box<dyn Future<Output = (S, Result<Option<T>, Error>)> + Send>>;

/// A stream of what a source returns one by one.
struct Items<S, T> {
    next: fn(S) -> Next<S, T>,
    state: State<S, T>,
}

enum State<S, T> {
    Idle(S),
    Waiting(Next<S, T>),
    Ended,
}

impl<S, T> Items<S, T> {
    fn new(source: S, next: fn(S) -> Next<S, T>) -> Self {
        Self { next, state: State::Idle(source) }
    }
}

impl<S: Unpin, T> Stream for Items<S, T> {
    type Item = Result<T, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match std::mem::replace(&mut self.state, State::Ended) {
                State::Idle(source) => self.state = State::Waiting((self.next)(source)),
                State::Waiting(mut waiting) => {
                    let Poll::Ready((source, item)) = waiting.as_mut().poll(context) else {
                        self.state = State::Waiting(waiting);
                        return Poll::Pending;
                    };
                    // Output continues after a gap; any other error may repeat forever.
                    if matches!(item, Ok(Some(_)) | Err(Error::Gap { .. })) {
                        self.state = State::Idle(source);
                    }
                    return Poll::Ready(item.transpose());
                }
                State::Ended => return Poll::Ready(None),
            }
        }
    }
}

impl Events {
    /// Returns the events as a stream, which ends after an error other than [`Error::Gap`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::{future::poll_fn, pin::Pin};
    /// use futures_core::Stream as _;
    /// use remex_client::{Command, process::Event};
    ///
    /// let process = Command::shell("exit 3").start(&client).await?;
    /// let mut events = process.events().into_stream();
    /// // `StreamExt::next` of the crate `futures` or `tokio-stream` does the same.
    /// let first = poll_fn(|context| Pin::new(&mut events).poll_next(context)).await;
    /// assert!(matches!(first, Some(Ok(Event::Exited { exit, .. })) if exit.code == 3));
    /// # Ok(()) }
    /// ```
    pub fn into_stream(self) -> impl Stream<Item = Result<Event, Error>> + Send + Unpin {
        Items::new(self, |mut source| {
            Box::pin(async move {
                let item = source.next().await;
                (source, item)
            })
        })
    }
}

impl Lines {
    /// Returns the lines as a stream, which ends after an error other than [`Error::Gap`].
    ///
    /// See [`Events::into_stream`] for an example.
    pub fn into_stream(self) -> impl Stream<Item = Result<Line, Error>> + Send + Unpin {
        Items::new(self, |mut source| {
            Box::pin(async move {
                let item = source.next().await;
                (source, item)
            })
        })
    }
}

impl Reader {
    /// Returns the chunks as a stream, which ends after an error other than [`Error::Gap`].
    ///
    /// See [`Events::into_stream`] for an example.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, Error>> + Send + Unpin {
        Items::new(self, |mut source| {
            Box::pin(async move {
                let item = source.chunk().await;
                (source, item)
            })
        })
    }
}

impl SessionEvents {
    /// Returns the events as a stream, which ends after an error other than [`Error::Gap`].
    ///
    /// See [`Events::into_stream`] for an example.
    pub fn into_stream(self) -> impl Stream<Item = Result<SessionEvent, Error>> + Send + Unpin {
        Items::new(self, |mut source| {
            Box::pin(async move {
                let item = source.next().await.map(Some);
                (source, item)
            })
        })
    }
}

impl Watch {
    /// Returns the changes as a stream, which ends after an error other than [`Error::Gap`].
    ///
    /// See [`Events::into_stream`] for an example.
    pub fn into_stream(self) -> impl Stream<Item = Result<Changes, Error>> + Send + Unpin {
        Items::new(self, |mut source| {
            Box::pin(async move {
                let item = source.next().await.map(Some);
                (source, item)
            })
        })
    }
}

impl Pages {
    /// Returns the pages as a stream, which ends after an error other than [`Error::Gap`].
    ///
    /// See [`Events::into_stream`] for an example.
    pub fn into_stream(self) -> impl Stream<Item = Result<Vec<DirectoryEntry>, Error>> + Send + Unpin {
        Items::new(self, |mut source| {
            Box::pin(async move {
                let item = source.next().await;
                (source, item)
            })
        })
    }
}

impl Download {
    /// Returns the chunks as a stream, which ends after an error other than [`Error::Gap`].
    ///
    /// See [`Events::into_stream`] for an example.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, Error>> + Send + Unpin {
        Items::new(self, |mut source| {
            Box::pin(async move {
                let item = source.chunk().await;
                (source, item)
            })
        })
    }
}

impl Body {
    /// Returns the parts as a stream, which ends after an error other than [`Error::Gap`].
    ///
    /// See [`Events::into_stream`] for an example.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, Error>> + Send + Unpin {
        Items::new(self, |mut source| {
            Box::pin(async move {
                let item = source.chunk().await;
                (source, item)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn a_stream_continues_after_a_gap_and_ends_after_any_other_error() {
        let lost = || Error::Lost(crate::SessionLost::Closed);
        let script = vec![Err(lost()), Err(Error::Gap { bytes: None }), Ok(Some(1))];
        let mut items = Items::new(script, |mut script: Vec<Result<Option<u8>, Error>>| {
            Box::pin(async move {
                let item = script.pop().expect("it is not asked after its end");
                (script, item)
            })
        });
        let mut seen = Vec::new();
        while let Some(item) = poll_fn(|context| Pin::new(&mut items).poll_next(context)).await {
            seen.push(item);
        }
        assert_eq!(seen, [Ok(1), Err(Error::Gap { bytes: None }), Err(lost())]);
    }
}
