//! Stands in for what is not written yet.

use remex_proto::{ErrorKind, RpcError, fs as wire, sandbox::Sandbox};

use super::{AnswerSize, Claims, FileWork};

macro_rules! stubs {
    ($($request:ident)*) => {
        $(impl FileWork for wire::$request {
            const ANSWER: AnswerSize = AnswerSize::Small;

            fn sandbox(&self) -> &Sandbox {
                &self.sandbox
            }

            fn claims(&self) -> Result<Claims, RpcError> {
                Ok(Claims::default())
            }

            fn run(&self) -> Result<Self::Reply, RpcError> {
                Err(RpcError::new(ErrorKind::NotSupported, "not yet"))
            }
        })*
    };
}

stubs! { CreateDirectory GetMetadata Canonicalize ReadDirectory Walk Remove Copy Rename SetPermissions SetTimes Symlink ReadLink }
