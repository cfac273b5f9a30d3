//! Files that are read and written in blocks.

use std::sync::Arc;

use remex_base::threads::ClientThreads;
use remex_files::{JobGuards, PathAccess, handles::block_len};
use remex_proto::{RequestId, RpcError, call::Empty, fs as wire};

use super::FileCalls;
use crate::{areas::context::CallContext, outbox::Responder};

/// Blocks up to this length are answered at once, whatever else waits for the client.
const SMALL_BLOCK_LEN: usize = 64 << 10;

impl FileCalls {
    pub(crate) fn open(
        &self,
        context: &mut CallContext,
        id: RequestId,
        request: wire::Open,
        responder: Responder,
    ) {
        let (limit, account) = (context.host().limits().handles, context.outbox().account());
        let begun = self.handles.begin(&request, context.connection(), limit, account);
        let (opening, lock) = match begun.and_then(|(opening, access)| Ok((opening, self.lock(access)?))) {
            Ok(begun) => begun,
            Err(error) => return responder.error(&error),
        };
        let (guard, host) = (self.guard.clone(), Arc::clone(context.host()));
        self.run_job(context, id, lock, move |guards| {
            let guard = guard.confined(host.confinement(), &request.sandbox);
            let result = guard
                .and_then(|guard| opening.open(&request, &guard))
                .map(|()| wire::OpenReply { handle_id: request.handle_id });
            drop((opening, guards));
            responder.answer(result);
        });
    }

    pub(crate) fn read_block(
        &self,
        context: &mut CallContext,
        id: RequestId,
        request: wire::ReadBlock,
        responder: Responder,
    ) {
        let access = PathAccess::default().and_reads_handle(context.connection(), &request.handle_id);
        let found = block_len(request.len, "read").and_then(|len| {
            let handle = self.handles.get(&request.handle_id)?;
            Ok((len, handle, self.lock(access)?))
        });
        let (len, handle, lock) = match found {
            Ok(found) => found,
            Err(error) => return responder.error(&error),
        };
        let handles = self.handles.clone();
        let read = move |guards: JobGuards| {
            let result = handles.read(&handle, &request, len);
            drop((handle, guards));
            result
        };
        if len <= SMALL_BLOCK_LEN {
            return self.run_job(context, id, lock, move |guards| answer(responder, read(guards)));
        }
        let large = self.large(context);
        let job = move |guards, responder| answer(responder, read(guards));
        context.spawn_call(id, large.answer(len as u64, lock, responder, job));
    }

    pub(crate) fn write_block(
        &self,
        context: &mut CallContext,
        id: RequestId,
        request: wire::WriteBlock,
        responder: Responder,
    ) {
        let found = block_len(request.chunk.len() as u64, "write").and_then(|_| {
            let handle = self.handles.get(&request.handle_id)?;
            let access = handle.access(context.connection(), &request.handle_id)?;
            Ok((handle, self.lock(access)?))
        });
        let (handle, lock) = match found {
            Ok(found) => found,
            Err(error) => return responder.error(&error),
        };
        let handles = self.handles.clone();
        self.run_job(context, id, lock, move |guards| {
            let result = handles.write(&handle, &request);
            drop((handle, guards));
            responder.answer(result.map(|()| Empty {}));
        });
    }

    pub(crate) fn close(
        &self,
        context: &mut CallContext,
        id: RequestId,
        request: &wire::Close,
        responder: Responder,
    ) {
        let handle = match self.handles.take(&request.handle_id) {
            Ok(Some(handle)) => handle,
            Ok(None) => return responder.ok(Empty {}),
            Err(error) => return responder.error(&error),
        };
        if handle.is_reader() {
            // Nothing has to wait for this, even if all slots are taken.
            drop(context.threads().run(move || drop(handle)));
            return responder.ok(Empty {});
        }
        let access = handle.access(context.connection(), &request.handle_id);
        let lock = match access.and_then(|access| self.lock(access)) {
            Ok(lock) => lock,
            Err(error) => return responder.error(&error),
        };
        let discard = request.discard;
        self.run_job(context, id, lock, move |guards| {
            let result = if discard { Ok(()) } else { handle.commit() };
            drop((handle, guards));
            responder.answer(result.map(|()| Empty {}));
        });
    }

    /// Closes everything that the connection left open; files that were to be replaced stay unchanged.
    pub(crate) fn close_all(&self, threads: &ClientThreads) {
        let open = self.handles.take_all();
        if !open.is_empty() {
            // Closing a file may hang.
            drop(threads.run(move || drop(open)));
        }
    }
}

fn answer(responder: Responder, result: Result<wire::Block, RpcError>) {
    match result {
        Ok(block) => responder.ok_with(block, wire::Block::write),
        Err(error) => responder.error(&error),
    }
}
