/**
 * What both entries, of Node and of browsers, export.
 *
 * @module
 */
export type { BytesLike } from "./bytes.js";
export type { CallOptions, Method, Params, Result } from "./calls.js";
export { resume } from "./session.js";
export type { ConnectionState, ResumedSession } from "./session.js";
export * from "./errors.js";
export type { Chunk, ClosedEvent, Exit, ExitedEvent, GapEvent, Output, OutputEvent, ProcessEvent, ReadBatch } from "./events.js";
export type { DirectoryEntry, Metadata } from "./file-calls.js";
export { Files } from "./files.js";
export type { Progress, TransferOptions, WriteOptions } from "./files.js";
export type { FoundFile, FoundLine, SearchFailure, SearchOptions, SearchResult } from "./file-search.js";
export { Host } from "./host.js";
export type { HostOptions } from "./host.js";
export { Http } from "./http.js";
export type { HttpHead, HttpRequest, HttpResponse, HttpStream } from "./http.js";
export type { Line } from "./lines.js";
export type { Match } from "./output-search.js";
export { joinPath } from "./path.js";
export type { Path } from "./path.js";
export { Process } from "./process.js";
export type { EventOptions, Snapshot, TerminalSize, WaitForOptions } from "./process.js";
export type { RestartOptions } from "./restart.js";
export { RemoteReader, RemoteWriter } from "./remote-file.js";
export type { WriterOptions } from "./remote-file.js";
export type { Source } from "./source.js";
export type { Argv, RunOptions, StartOptions } from "./start.js";
export { Stdin } from "./stdin.js";
export { Watch } from "./watch.js";
export type { Changes } from "./watch.js";
export { Agent } from "./agent.js";
export type { AgentLimits, AgentProcess, AgentProgress, Step, Window } from "./agent.js";
export type { TruncatedText } from "./agent-text.js";
