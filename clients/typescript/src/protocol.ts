// Generated from spec/protocol.schema.json by scripts/generate.mjs; do not edit.

/** The version of the protocol that these types describe. */
export const PROTOCOL_VERSION = "exec-server.v0";

/** Bytes as standard base64 with padding. */
export type Base64Bytes = string;

/** Standard base64 with padding; invalid base64 is reported by the method, not as invalid params. */
export type Base64Text = string;

/** `capabilities/discoverV2`: the plugins and skills that the host's user has installed. */
export interface CapabilitiesDiscoverV2Params {
  /** Where the client works. */
  cwd: HostPath;
}

/** The answer to `capabilities/discoverV2`. */
export interface CapabilitiesDiscoverV2Result {
  /** The plugins, sorted by id. */
  plugins: CapabilitiesPlugin[];
  /** The skills that are part of no plugin. */
  skills: CapabilitiesSkill[];
  /** What was left out, and why. */
  warnings: string[];
}

/** A directory for skills. */
export interface CapabilitiesDiscoveryRoot {
  /** `codex-home-skills` or `user-agent-skills`. */
  id: string;
  /** The directory. */
  path: HostPath;
}

/** An installed plugin. */
export interface CapabilitiesPlugin {
  /** For people. */
  displayName: string;
  /** Its files. */
  files: CapabilitiesPluginFiles;
  /** `NAME@MARKETPLACE`. */
  id: string;
  /** Always null: this server installs no plugins from elsewhere. */
  remotePluginId: string | null;
  /** Where it is installed. */
  root: HostPath;
  /** Its skills, sorted by URI. */
  skills: CapabilitiesSkill[];
  /** The newest that is installed. */
  version: string | null;
}

/** The files that describe a plugin. */
export interface CapabilitiesPluginFiles {
  /** Its apps: the file that the manifest names, or `.app.json`. */
  appsConfig: CapabilitiesTextFile | null;
  /** `plugin.json`. */
  manifest: CapabilitiesTextFile;
  /** Its MCP servers: the file that the manifest names, or `.mcp.json`. */
  mcpConfig: CapabilitiesTextFile | null;
}

/** What a skill says about itself. */
export interface CapabilitiesSkill {
  /** What it needs. */
  dependencies: CapabilitiesSkillDependencies | null;
  /** What it is for. */
  description: string;
  /** Where it was found; absent for the skills of a plugin. */
  discoveryRoot?: CapabilitiesDiscoveryRoot | null | undefined;
  /** Its name, that of a plugin with `PLUGIN:` before it. */
  name: string;
  /** Its `SKILL.md`. */
  path: HostPath;
  /** When it may be used. */
  policy: CapabilitiesSkillPolicy | null;
  /** The same in a few words. */
  shortDescription: string | null;
}

/** What a skill needs. */
export interface CapabilitiesSkillDependencies {
  /** Tools. */
  tools: CapabilitiesSkillTool[];
}

/** The files that describe a skill. */
export interface CapabilitiesSkillFiles {
  /** `SKILL.md`. */
  instructions: CapabilitiesTextFile;
  /** `agents/openai.yaml` beside it. */
  metadata: CapabilitiesTextFile | null;
}

/** When a skill may be used. */
export interface CapabilitiesSkillPolicy {
  /** False: only if the user names it. */
  allowImplicitInvocation: boolean | null;
  /** The products that may use it; empty: all. */
  products: string[];
}

/** A tool that a skill needs. */
export interface CapabilitiesSkillTool {
  /** The program that runs it. */
  command: string | null;
  /** What it is for. */
  description: string | null;
  /** The port that receives its authorization. */
  oauthCallbackPort: number | null;
  /** How it is reached. */
  transport: string | null;
  /** Such as `mcp`. */
  type: string;
  /** Where it is. */
  url: string | null;
  /** Which one. */
  value: string;
}

/** A file with its text. */
export interface CapabilitiesTextFile {
  /** Its text. */
  contents: string;
  /** The file. */
  path: HostPath;
}

/** `capabilityRoots/discoverV1`: the plugins and skills in directories. */
export interface CapabilityRootsDiscoverV1Params {
  /** The directories, at most 128. */
  roots: CapabilityRootsRoot[];
}

/** The answer to `capabilityRoots/discoverV1`, in the order of the request. */
export interface CapabilityRootsDiscoverV1Result {
  /** One for each directory. */
  roots: CapabilityRootsFound[];
}

/** What a directory contains. */
export interface CapabilityRootsFound {
  /** Why the directory could not be searched. */
  error: string | null;
  /** As in the request. */
  id: string;
  /** The manifests of the directory and of the plugins below it. */
  namespaceManifests: CapabilitiesTextFile[];
  /** As in the request. */
  path: HostPath;
  /** The files of the plugin that the directory is. */
  plugin: CapabilitiesPluginFiles | null;
  /** The skills in it and below, sorted by URI. */
  skills: CapabilitiesSkillFiles[];
  /** What was left out, and why. */
  warnings: string[];
}

/** A directory to search. */
export interface CapabilityRootsRoot {
  /** Any string; returned as it is. */
  id: string;
  /** The directory. */
  path: HostPath;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
}

/** The selected keys of one file. */
export interface EnvironmentConfigLayer {
  /** What relative paths in it start from. */
  baseDir: HostPath;
  /** Which file it is, for people. */
  source: string;
  /** The keys as TOML. */
  toml: string;
}

/** Layers from lowest to highest precedence. */
export interface EnvironmentConfigLayers {
  /** Where the client puts layers of its own. */
  cloudInsertionIndex: number;
  /** One for each file that has any of the keys. */
  layers: EnvironmentConfigLayer[];
}

/** `environmentConfig/read`: selected parts of the configuration files on the host. */
export interface EnvironmentConfigReadParams {
  /** Which keys of the configuration, each as the segments of its path. */
  configPaths: string[][];
  /** Where the client works. */
  cwd: HostPath;
  /** Which keys of the requirements. */
  requirementsPaths: string[][];
}

/** The answer to `environmentConfig/read`. */
export interface EnvironmentConfigReadResult {
  /** Where the user's configuration is. */
  codexHomeDir: HostPath | null;
  /** The configuration. */
  config: EnvironmentConfigLayers;
  /** The host's name. */
  hostname: string | null;
  /** What administrators demand. */
  requirements: EnvironmentConfigLayers;
  /** The user's home directory. */
  userHomeDir: HostPath | null;
}

/** What a host can enforce for processes with a `sandbox`. */
export interface EnvironmentConfinement {
  /** How to enable what is missing; null if nothing is. */
  hint: string | null;
  /** The version of the kernel's Landlock; null if there is none. */
  landlockAbi: number | null;
  /** What confines processes. */
  processes: EnvironmentProcessConfinement;
  /** Why not every profile can be enforced; null if all can. */
  reason: string | null;
}

/**
 * What a server implements beyond the plain methods: only what is listed here can be true.
 *
 * The base dialect knows more words; a client takes an absent one as false.
 */
export interface EnvironmentFeatures {
  /** `sandbox` of the roots of `capabilityRoots/discoverV1`. */
  capabilityDiscoverySandbox: boolean;
  /** `capabilityRoots/discoverV1` and `capabilities/discoverV2`. */
  capabilityDiscoveryV2: boolean;
  /** `environmentConfig/read`. */
  environmentConfigRead: boolean;
  /** `fs/open` with `mode: "replace"`, and `fs/writeBlock`. */
  fileWriteStreaming: boolean;
  /** `fs/watchMissing`. */
  fsWatchMissing: boolean;
  /** `valueEnvVar` in the headers of `http/request`. */
  httpHeaderEnvVars: boolean;
  /** `networkProxy` of `process/start`. */
  networkProxyLaunch: boolean;
  /** `incarnation` in answers and requests about processes. */
  processIncarnation: boolean;
  /** `restart` of `process/start`. */
  processRestart: boolean;
  /** `process/restart`, and `restartable` of `process/start`. */
  processRestartRequest: boolean;
  /** `user` of `process/start`. */
  processUser: boolean;
  /** `sandbox` of `fs/open`. */
  sandboxedFileStreaming: boolean;
  /** `shellSnapshot` of `process/start`. */
  shellSnapshotV2: boolean;
}

/** The answer to `environment/info`, also in the answer to `initialize`. */
export interface EnvironmentInfo {
  /** What the server implements; absent is false. */
  capabilities: EnvironmentFeatures;
  /** What the host can enforce; only in the answer to `environment/info`, because it takes time to find out. */
  confinement?: EnvironmentConfinement | null | undefined;
  /** The server's working directory. */
  cwd: HostPath | null;
  /** The version of the server. */
  executorVersion: string;
  /** `linux`. */
  platformOs: string;
  /** Directories to prepend to the `PATH` of commands. */
  prependPathDirs: HostPath[];
  /** How the server enforces `limits` of `process/start`; absent: it ignores them. */
  processLimits?: EnvironmentProcessLimits | null | undefined;
  /** An opaque id: the same for the same installation on the same host. */
  providerId: string;
  /** The user's login shell. */
  shell: EnvironmentShell;
  /** Which processes the server starts; absent: any. */
  starts?: EnvironmentStarts | null | undefined;
  /** What the server keeps for processes that outlive it; absent: all processes end with it. Only in the answer to `environment/info`, because it changes. */
  state?: EnvironmentState | null | undefined;
  /** Where programs put temporary files. */
  tempDir: HostPath | null;
  /** The directory in `TMPDIR`, if it is set. */
  temporaryDirectories: HostPath[];
  /** The user's home directory. */
  userHomeDir: HostPath | null;
}

/** `environment/info`: facts about the host. */
export type EnvironmentInfoParams = Record<string, unknown>;

/** The process that runs durable processes and outlives the server. */
export interface EnvironmentKeeper {
  /** Its process id on the host. */
  pid: number;
  /** Whether it has answered the server within 2 s. */
  responds: boolean;
  /** Its version, which may be older than that of the server; null if it does not respond. */
  version: string | null;
}

/** How a limit is enforced. Clients must accept words that are not listed. */
export type EnvironmentLimitMethod = "rlimit" | "cgroup" | "unavailable" | (string & {});

/** What confines processes. Clients must accept words that are not listed. */
export type EnvironmentProcessConfinement = "namespaces" | "landlock" | "none" | (string & {});

/** How a server enforces each of the limits of a process. */
export interface EnvironmentProcessLimits {
  /** CPU time. */
  cpuSeconds: EnvironmentLimitMethod;
  /** The size of files. */
  fileBytes: EnvironmentLimitMethod;
  /** Memory. */
  memoryBytes: EnvironmentLimitMethod;
  /** Open files. */
  openFiles: EnvironmentLimitMethod;
  /** Processes and threads. */
  processes: EnvironmentLimitMethod;
  /** Why the server uses no cgroup for memory or processes; null if it uses one for both. */
  withoutCgroup: string | null;
}

/** A shell. */
export interface EnvironmentShell {
  /** Such as `bash`. */
  name: string;
  /** A native path. */
  path: string;
}

/** Which processes a server starts. Clients must accept words that are not listed. */
export type EnvironmentStarts = "confined" | "none" | (string & {});

/**
 * The state directory of a server, where it keeps processes that outlive it.
 *
 * A client whose credential lacks the scope `metrics` learns only that there is one: everything is null.
 */
export interface EnvironmentState {
  /** Where it is. */
  directory: HostPath | null;
  /** How many closed ones have a log that is kept; null if the keeper does not respond. */
  endedProcesses: number | null;
  /** The process that runs durable processes; null while the server starts another one. */
  keeper: EnvironmentKeeper | null;
  /** Disk space that they may use, in bytes. */
  quotaBytes: number | null;
  /** How many durable processes have not closed; null if the keeper does not respond. */
  runningProcesses: number | null;
  /** Disk space that the logs of durable processes use, in bytes; null if the keeper does not respond. */
  usedBytes: number | null;
}

/** Whether an environment can be used. Clients must accept words that are not listed. */
export type EnvironmentStatus = "ready" | (string & {});

/** `environment/status`. */
export type EnvironmentStatusParams = Record<string, unknown>;

/** The answer to `environment/status`. */
export interface EnvironmentStatusResult {
  /** Whether it can be used. */
  status: EnvironmentStatus;
}

/** `flow/ack`, from the client: everything before this mark has arrived. */
export interface FlowAckParams {
  /** The newest mark seen; it acknowledges the earlier ones too. */
  mark: number;
}

/**
 * `flow/bodyConsumed`, from the client: the client has consumed the parts of a streamed body up to `seq`.
 *
 * The server sends no more than 16 parts beyond it, and reads no more from the web server.
 */
export interface FlowBodyConsumedParams {
  /** A stream of the connection. */
  requestId: string;
  /** The last consumed part; never decreases. */
  seq: number;
}

/**
 * `flow/consumed`, from the client: the client has consumed the events of a process up to `seq`.
 *
 * The server streams no more than 256 KiB or 4,096 events beyond it, and keeps what is not consumed.
 */
export interface FlowConsumedParams {
  /** The start that it was read from: if the process was restarted since, this says nothing about the new one. */
  incarnation?: number | null | undefined;
  /** A process of the connection's own session. */
  processId: string;
  /** The last consumed event; never decreases. */
  seq: number;
}

/** `flow/mark`, from the server: acknowledge when you have read this far. */
export interface FlowMarkParams {
  /** Grows with each mark of one connection. */
  mark: number;
}

/** `fs/canonicalize`: the path without symbolic links; it must exist. */
export interface FsCanonicalizeParams {
  /** The path. */
  path: HostPath;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
}

/** The answer to `fs/canonicalize`. */
export interface FsCanonicalizeResult {
  /** With all links resolved. */
  path: HostPath;
}

/** One path in `fs/changed`. */
export interface FsChange {
  /** What. */
  kind: FsChangeKind;
  /** Where. */
  path: HostPath;
}

/** What happened at a path; a move is one `removed` and one `created`. Clients must accept words that are not listed. */
export type FsChangeKind = "created" | "modified" | "removed" | (string & {});

/** `fs/changed`, from the server: the changes since the previous notification, sent once events have settled. */
export interface FsChangedParams {
  /** Each path once, however often it changed. */
  changes: FsChange[];
  /** Too many changes to report: rescan everything. */
  overflow: boolean;
  /** The watch. */
  watchId: number;
}

/** `fs/close`: ends a handle; an unknown handle is not an error. */
export interface FsCloseParams {
  /** With an `atomic` handle: keeps the old file and discards what was written. */
  discard?: boolean | undefined;
  /** The handle. */
  handleId: string;
}

/** `sha256:` and 64 hexadecimal digits. */
export type FsContentHash = string;

/** `fs/copy`: a file with its mode, a link as a link, or a directory with its contents. */
export interface FsCopyParams {
  /** To here. */
  destinationPath: HostPath;
  /** Needed for directories. */
  recursive: boolean;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
  /** From here. */
  sourcePath: HostPath;
}

/** `fs/createDirectory`. */
export interface FsCreateDirectoryParams {
  /** False refuses symbolic links anywhere in the path. */
  followSymlinks?: boolean | null | undefined;
  /** The directory. */
  path: HostPath;
  /** Creates missing parents, and accepts an existing directory; true unless given. */
  recursive?: boolean | null | undefined;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
}

/**
 * One entry of a `FsReadDirectoryResult`.
 *
 * A link is classified by its target. Broken links are omitted, except with `limit`.
 */
export interface FsDirectoryEntry {
  /** For people: bytes that are not UTF-8 are replaced. */
  fileName: string;
  /** A directory, or a link to one. */
  isDirectory: boolean;
  /** A regular file, or a link to one. */
  isFile: boolean;
  /** With `limit`: the entry itself is a symbolic link. */
  isSymlink?: boolean | null | undefined;
  /** With `details`: of the entry itself, links not followed. */
  metadata?: FsMetadata | null | undefined;
  /** With `limit`: its exact path. */
  path?: HostPath | null | undefined;
}

/** A file that a `fs/search` found. */
export interface FsFoundFile {
  /** How many of its lines match, as far as it was searched. */
  count: number;
  /** Those lines, and the lines around them. */
  lines?: FsFoundLine[] | undefined;
  /** Where it is. */
  path: HostPath;
}

/** A line of a `FsFoundFile`. */
export interface FsFoundLine {
  /** Whether it matches, or is only near a match. */
  isMatch?: boolean | undefined;
  /** Its number, from 1. */
  number: number;
  /** How many bytes of the line after the text are left out. */
  omittedAfter?: number | undefined;
  /** How many bytes of the line before the text are left out, because it is long. */
  omittedBefore?: number | undefined;
  /** Its text without the line end; bytes that are not UTF-8 are replaced. */
  text: string;
}

/** `fs/getMetadata`: what a path names. */
export interface FsGetMetadataParams {
  /** False refuses symbolic links anywhere in the path. */
  followSymlinks?: boolean | null | undefined;
  /** The path. */
  path: HostPath;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
}

/** `fs/hash`: the hash of a regular file, or of a part of it. */
export interface FsHashParams {
  /** False refuses symbolic links anywhere in the path. */
  followSymlinks?: boolean | null | undefined;
  /** How long the part is; absent: up to the end of the file. */
  len?: number | null | undefined;
  /** Where the part begins; absent: at the beginning. */
  offset?: number | undefined;
  /** The file. */
  path: HostPath;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
}

/** The answer to `fs/hash`. */
export interface FsHashResult {
  /** The number of bytes hashed; less than requested if the file ends earlier. */
  bytes: number;
  /** The hash of those bytes. */
  hash: FsContentHash;
  /** The size of the whole file. */
  size: number;
}

/** The content that the writer expects: a content hash, or `absent` if the file must not exist. */
export type FsIfMatch = string;

/**
 * The answer to `fs/getMetadata`: of the target where the path is a link.
 *
 * The first six members are the base dialect's; a server that is not remex sends only those.
 */
export interface FsMetadata {
  /** 0 where the file system does not know. */
  createdAtMs: number;
  /** The group's number. */
  gid?: number | null | undefined;
  /** A directory. */
  isDirectory: boolean;
  /** A regular file. */
  isFile: boolean;
  /** The path itself is a symbolic link; the oldest dialect does not say. */
  isSymlink: boolean;
  /** What it is. */
  kind?: FsMetadataKind | null | undefined;
  /** Where the link points, when the path itself is one; bytes that are not UTF-8 are replaced. */
  linkTarget?: string | null | undefined;
  /** Permission bits with set-user-id, set-group-id and sticky: 0 to 4095. */
  mode?: number | null | undefined;
  /** When the content changed last. */
  modifiedAtMs: number;
  /** In bytes; 0 in the oldest dialect. */
  size: number;
  /** The owner's number. */
  uid?: number | null | undefined;
}

/** What a path names. Clients must accept words that are not listed. */
export type FsMetadataKind = "file" | "directory" | "symlink" | "fifo" | "socket" | "device" | (string & {});

/** `fs/missingChanged`, from the server: look again; the watch has ended. */
export interface FsMissingChangedParams {
  /** The watch. */
  watchId: number;
}

/** What a file is opened for. */
export type FsOpenMode = "read" | "replace" | "write";

/** `fs/open`: opens a regular file. */
export interface FsOpenParams {
  /** With `replace`: the old file stays whole until `fs/close`, which replaces it in one step. */
  atomic?: boolean | undefined;
  /** With which permissions a file is created that is not there: 0 to octal 777, less the umask; absent: 0666. */
  createMode?: number | null | undefined;
  /** With `write`: only a file that belongs to the server's user alone (one name, closed to everybody else), and that nobody else has open like this. */
  exclusive?: boolean | undefined;
  /** The client's name for the handle, at most 32 bytes; unique on the connection. */
  handleId: string;
  /** What for. */
  mode?: FsOpenMode | undefined;
  /** The file. */
  path: HostPath;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
}

/** The answer to `fs/open`. */
export interface FsOpenResult {
  /** As in the request. */
  handleId: string;
}

/** `fs/readBlock`: reads a part of an open file. */
export interface FsReadBlockParams {
  /** The handle. */
  handleId: string;
  /** 1 to 1,048,576. */
  len: number;
  /** Where the block begins. */
  offset: number;
}

/** The answer to `fs/readBlock`. */
export interface FsReadBlockResult {
  /** The bytes read. */
  chunk: Base64Bytes;
  /** The read reached the end of the file. */
  eof: boolean;
}

/**
 * `fs/readDirectory`: what is in a directory.
 *
 * Without `limit` everything in one answer, in no particular order, up to the server's cap. With it, page after page in byte order of the names: whatever is there all the time is listed once.
 */
export interface FsReadDirectoryParams {
  /** `nextCursor` of the page before; absent: the first page. */
  cursor?: string | null | undefined;
  /** With `limit`: adds the metadata of each entry. */
  details?: boolean | undefined;
  /** The most entries of one page, from 1 to the server's cap. */
  limit?: number | null | undefined;
  /** The directory. */
  path: HostPath;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
}

/** The answer to `fs/readDirectory`. */
export interface FsReadDirectoryResult {
  /** What is in it, without `.` and `..`. */
  entries: FsDirectoryEntry[];
  /** The cursor of the next page; absent after the last one. */
  nextCursor?: string | null | undefined;
}

/** `fs/readFile`: a whole regular file in one message. */
export interface FsReadFileParams {
  /** False refuses symbolic links anywhere in the path. */
  followSymlinks?: boolean | null | undefined;
  /** The file. */
  path: HostPath;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
}

/** The answer to `fs/readFile`. */
export interface FsReadFileResult {
  /** What is in it. */
  dataBase64: Base64Bytes;
}

/** `fs/readLink`: where a symbolic link points, whether that exists or not. */
export interface FsReadLinkParams {
  /** The link. */
  path: HostPath;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
}

/** The answer to `fs/readLink`. */
export interface FsReadLinkResult {
  /** For people: bytes that are not UTF-8 are replaced. */
  target: string;
  /** Exactly what the link says. */
  targetBase64: Base64Bytes;
}

/** `fs/remove`: a link itself is removed, never what it points to. */
export interface FsRemoveParams {
  /** False refuses symbolic links anywhere in the path. */
  followSymlinks?: boolean | null | undefined;
  /** Ignores a missing path; true unless given. */
  force?: boolean | null | undefined;
  /** The path. */
  path: HostPath;
  /** Removes directories with their contents; true unless given. */
  recursive?: boolean | null | undefined;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
}

/** `fs/rename`: moves within one file system, in one step. A link itself is moved. */
export interface FsRenameParams {
  /** To here. */
  destinationPath: HostPath;
  /** False fails if the destination exists; true unless given. */
  overwrite?: boolean | null | undefined;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
  /** From here. */
  sourcePath: HostPath;
}

/** What ended a `fs/search` early. Clients must accept words that are not listed. */
export type FsSearchLimit = "items" | "bytes" | "time" | "entries" | (string & {});

/** What a `fs/search` looks for, where, and how much it returns. */
export interface FsSearchOptions {
  /** Lines to return after each match; at most 100. */
  contextAfter?: number | undefined;
  /** Lines to return before each match; at most 100. */
  contextBefore?: number | undefined;
  /** Only files whose paths below `path` match one of these globs, and none of those that begin with `!`. */
  globs?: string[] | undefined;
  /** Upper and lower case are the same in the pattern. */
  ignoreCase?: boolean | undefined;
  /** The pattern is plain text. */
  literal?: boolean | undefined;
  /** How much text and paths to return, in bytes; 1 to 1,048,576, absent: 262,144. */
  maxBytes?: number | null | undefined;
  /** How many levels below `path` to search: 0 is its own files; absent: all. */
  maxDepth?: number | null | undefined;
  /** How many matching lines, or files, to return; 1 to 10,000, absent: 500. */
  maxItems?: number | null | undefined;
  /** How much of one line to return, in bytes; 1 to 65,536, absent: 1,024. */
  maxLineBytes?: number | null | undefined;
  /** A regular expression of Rust, for one line; absent: every file is found. */
  pattern?: string | null | undefined;
  /** What is returned of each file. */
  report?: FsSearchReport | undefined;
  /** How many matching lines, or files, to skip, to continue a search. */
  skip?: number | undefined;
  /** After how long to return what was found; up to 120,000, absent: 20,000. */
  timeoutMs?: number | null | undefined;
  /** Also what `.gitignore` and `.ignore` files exclude, and directories of version control. */
  withIgnored?: boolean | undefined;
}

/** `fs/search`: the lines of the files below a directory that match a regular expression, or the files themselves. */
export interface FsSearchParams {
  /** What to look for. */
  options?: FsSearchOptions | undefined;
  /** The directory, or a single file. */
  path: HostPath;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
}

/** What a `fs/search` returns of each file. */
export type FsSearchReport = "lines" | "counts" | "files";

/** The answer to `fs/search`. */
export interface FsSearchResult {
  /** How many files were not searched because they are binary. */
  binary: number;
  /** The first of them. */
  binaryFiles?: HostPath[] | undefined;
  /** What could not be searched completely, at most 50. */
  errors?: FsWalkError[] | undefined;
  /** The files with matches, depth first, each directory in the byte order of its names. */
  files: FsFoundFile[];
  /** How many files and directories were left out because of ignore files, or as directories of version control. */
  ignored: number;
  /** How many files were searched. */
  searched: number;
  /** Which limit ended the search; absent: it is complete. */
  truncated?: FsSearchLimit | null | undefined;
}

/** `fs/setPermissions`: changes the permission bits of a file or directory. */
export interface FsSetPermissionsParams {
  /** False refuses symbolic links anywhere in the path. */
  followSymlinks?: boolean | null | undefined;
  /** 0 to 4095, which is octal 7777. */
  mode: number;
  /** The path. */
  path: HostPath;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
}

/** What has become of the permission bits. */
export interface FsSetPermissionsResult {
  /** The bits of `mode` that were left out, because the credential has not the scope `files:setid`; absent: none. */
  leftOut?: number | null | undefined;
}

/** `fs/setTimes`: changes the times of a file or directory; at least one is needed. */
export interface FsSetTimesParams {
  /** The access time; absent: unchanged. */
  accessedAtMs?: number | null | undefined;
  /** False refuses symbolic links anywhere in the path. */
  followSymlinks?: boolean | null | undefined;
  /** The modification time; absent: unchanged. */
  modifiedAtMs?: number | null | undefined;
  /** The path. */
  path: HostPath;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
}

/** `fs/symlink`: makes a symbolic link; exactly one of the two targets is needed. */
export interface FsSymlinkParams {
  /** The path of the link, which must not exist yet. */
  path: HostPath;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
  /** Where it points: a native path, relative ones start from the link. */
  target?: string | null | undefined;
  /** The same as bytes, for names that are not UTF-8. */
  targetBase64?: Base64Bytes | null | undefined;
}

/** `fs/unwatch`: ends a watch; an unknown watch is not an error. */
export interface FsUnwatchParams {
  /** The watch. */
  watchId: number;
}

/** An entry found by a `fs/walk`. */
export interface FsWalkEntry {
  /** What it is. */
  kind: FsWalkKind;
  /** Where it is. */
  path: HostPath;
}

/** An entry that a `fs/walk` could not read or name. */
export interface FsWalkError {
  /** Why. */
  message: string;
  /** Where; bytes that are not UTF-8 are replaced. */
  path: HostPath;
}

/** What a `FsWalkEntry` is. Clients must accept words that are not listed. */
export type FsWalkKind = "directory" | "file" | (string & {});

/** How far a `fs/walk` goes. */
export interface FsWalkOptions {
  /** Lists and enters links to directories, each real directory once. */
  followDirectorySymlinks: boolean;
  /** 0 lists the children of the root only; at most 64. */
  maxDepth: number;
  /** Directories read, the root included; 1 to 10,000. */
  maxDirectories: number;
  /** Entries looked at; 1 to 50,000. */
  maxEntries: number;
  /** Does not enter directories whose name begins with a dot. */
  pruneHiddenDirectories?: boolean | undefined;
}

/** `fs/walk`: what is below a directory, breadth first, each directory sorted by name. */
export interface FsWalkParams {
  /** How far to go. */
  options: FsWalkOptions;
  /** The directory; it is not listed itself. */
  path: HostPath;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
}

/** The answer to `fs/walk`. */
export interface FsWalkResult {
  /** Directories and regular files. */
  entries: FsWalkEntry[];
  /** Entries that could not be read or named. */
  errors: FsWalkError[];
  /** A limit was reached, so there is more. */
  truncated: boolean;
}

/**
 * `fs/watchMissing`: notifies once when one of the paths, or its first missing ancestor, appears.
 *
 * A connection has one such watch: a later request replaces the earlier one, whatever its id.
 */
export interface FsWatchMissingParams {
  /** Paths that do not exist. */
  missing: HostPath[];
  /** A path that exists; changes of the path itself are reported too, but not changes of its contents. */
  present?: HostPath | null | undefined;
  /** The client's name for the watch. */
  watchId: number;
}

/** The answer to `fs/watchMissing`. */
export interface FsWatchMissingResult {
  /** False if there is nothing to wait for, or if it cannot be watched; no notification follows. */
  watching: boolean;
}

/** `fs/watch`: reports changes of a path and everything below it, until `fs/unwatch`. */
export interface FsWatchParams {
  /** A file or directory that exists; links are resolved once, at the beginning. */
  path: HostPath;
  /** With everything below it; true unless given. */
  recursive?: boolean | null | undefined;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
  /** The client's name for the watch; unique among those of the connection. */
  watchId: number;
}

/** `fs/writeBlock`: writes a part of an open file; skipped ranges read as zeros. */
export interface FsWriteBlockParams {
  /** 1 to 1,048,576 bytes. */
  chunk: Base64Bytes;
  /** The handle. */
  handleId: string;
  /** Where the block begins. */
  offset: number;
}

/**
 * `fs/writeFile`: replaces the content of a file, or creates it.
 *
 * Without `atomic` the file keeps its inode, mode and hard links and is written in place.
 */
export interface FsWriteFileParams {
  /** Writes a new file beside the old one and replaces it in one step; mode and owner are kept. */
  atomic?: boolean | undefined;
  /** With which permissions a file is created that is not there: 0 to octal 777, less the umask; absent: 0666. */
  createMode?: number | null | undefined;
  /** What is to be in it. */
  dataBase64: Base64Text;
  /** False refuses symbolic links anywhere in the path. */
  followSymlinks?: boolean | null | undefined;
  /** The expected current content; if it differs, the write fails and changes nothing. */
  ifMatch?: FsIfMatch | null | undefined;
  /** The file. */
  path: HostPath;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
}

/** The answer to `fs/writeFile`. */
export interface FsWriteFileResult {
  /** With `ifMatch`: the hash of the new content, for the next write. */
  hash?: FsContentHash | null | undefined;
}

/** A `file:` URI, or an absolute path, which is used verbatim; always a URI in results. */
export type HostPath = string;

/** What to do with a redirect. */
export type HttpRedirectPolicy = "follow" | "stop";

/** `http/request/bodyDelta`, from the server: the next part of a streamed body. */
export interface HttpRequestBodyDeltaParams {
  /** At most 1 MiB, and 64 KiB from this server; empty in the last. */
  deltaBase64: Base64Bytes;
  /** This is the last. */
  done: boolean;
  /** Why the body is not complete, in the last. */
  error: string | null;
  /** The request. */
  requestId: string;
  /** 1, 2, 3 and so on. */
  seq: number;
}

/** One header of a request. `Debug` hides its value, which is often a secret. */
export interface HttpRequestHeader {
  /** Its name. */
  name: string;
  /** Its value, or the beginning of it. */
  value: string;
  /** A variable of the server's environment whose value is put behind `value`. */
  valueEnvVar?: string | null | undefined;
}

/** `http/request`. */
export interface HttpRequestParams {
  /** The body. */
  bodyBase64?: Base64Bytes | null | undefined;
  /** Order and repeats are kept. */
  headers?: HttpRequestHeader[] | undefined;
  /** Sent as given. */
  method: string;
  /** What to do with a redirect. */
  redirectPolicy?: HttpRedirectPolicy | undefined;
  /** Names the stream of the body; unique among the streams of the connection. */
  requestId: string;
  /** Sends the body after the answer in `http/request/bodyDelta`s. */
  streamResponse?: boolean | undefined;
  /** For the whole exchange; absent: no limit. 0 fails at once. */
  timeoutMs?: number | null | undefined;
  /** `http` or `https`; a fragment is not sent. */
  url: string;
}

/** The answer to `http/request`, for any status. */
export interface HttpRequestResult {
  /** The body as received, not decompressed; empty if it is streamed. */
  bodyBase64: Base64Bytes;
  /** Names in lower case; values that are not visible ASCII are left out. */
  headers: HttpResponseHeader[];
  /** The status code. */
  status: number;
}

/** One header of a response. */
export interface HttpResponseHeader {
  /** In lower case. */
  name: string;
  /** Its value. */
  value: string;
}

/** The capabilities enabled on a connection, and those the server supports. */
export interface InitializeCapabilities {
  /** Supported by the server. */
  available: InitializeCapability[];
  /** Requested and enabled. */
  enabled: InitializeCapability[];
}

/** Something beyond the base dialect that a client must ask for. Clients must accept words that are not listed. */
export type InitializeCapability = "processStarted" | "processFailed" | "processGap" | "cancel" | "acks" | "consumed" | "binaryFrames" | (string & {});

/** What a server allows one client; 0 means that the server did not say. */
export interface InitializeLimits {
  /** Open file handles of one connection. */
  handles: number;
  /** Length of one message, in bytes. */
  messageBytes: number;
  /** Unanswered requests before the server stops reading. */
  pendingRequests: number;
  /** Processes of one session. */
  processes: number;
  /** The most that `output.retainBytes` of a start can ask for. */
  retainBytes: number;
}

/** `initialize`, the first request of every connection. */
export interface InitializeParams {
  /** What the client wants beyond the base dialect; unknown words are ignored. */
  capabilities?: InitializeCapability[] | null | undefined;
  /** What the client calls itself; may be empty. */
  clientName: string;
  /** How long the session may live without a connection, up to the server's cap. */
  detachTtlMs?: number | null | undefined;
  /** The session to continue, null for a new one. */
  resumeSessionId?: string | null | undefined;
  /** A name that people can use instead of the id; unique among the identity's sessions. */
  sessionName?: string | null | undefined;
  /** With `resumeSessionId`: detach the current controller instead of failing. */
  takeover?: boolean | null | undefined;
}

/**
 * The answer to `initialize`.
 *
 * A server other than remex may send only `sessionId`, and one of the oldest dialect only `protocolVersion`. Of the other members, those that describe the server count as absent if they do not decode.
 */
export interface InitializeResult {
  /** What is on for this connection, and what the server can do at all. */
  capabilities: InitializeCapabilities;
  /** How long the session lives without a connection; null until the server ends. */
  detachTtlMs: number | null;
  /** What the host is; the same as `environment/info` answers. */
  environmentInfo?: EnvironmentInfo | null | undefined;
  /** What the server allows. */
  limits: InitializeLimits;
  /** `exec-server.v0`. */
  protocolVersion: string;
  /** Whether an existing session was attached. */
  resumed: boolean;
  /** Which program answers. */
  server: InitializeServer;
  /** Resumes this session after a disconnect; empty on a server without sessions. */
  sessionId: string;
}

/** The server program. */
export interface InitializeServer {
  /** `remex` for this one. */
  name: string;
  /** Its version. */
  version: string;
}

/** `initialized`: the client has seen the answer to `initialize`. It may repeat. */
export type InitializedParams = Record<string, unknown>;

/** Whether a process may reach a host. */
export type NetworkDecision = {
  type: "allow";
} | {
  /** Why, in up to 1,024 bytes without control characters. */
  reason: string;
  type: "deny";
} | {
  /** Why, in up to 1,024 bytes without control characters. */
  reason: string;
  type: "ask";
};

/** `network/policyDecision`: the server tells what was decided about a host that a process asked for. */
export interface NetworkPolicyDecisionParams {
  /** Who asked, if that is known. */
  client?: string | null | undefined;
  /** `allow`, `deny` or `ask`. */
  decision: string;
  /** The host. */
  host: string;
  /** The method of an HTTP request. */
  method?: string | null | undefined;
  /** Whether the client has allowed what no rule allows. */
  policyOverride: boolean;
  /** The TCP port. */
  port: number;
  /** The process. */
  processId: string;
  /** How the process asked for the host. */
  protocol: NetworkProtocol;
  /** Why; `allowed` for what may be reached. */
  reason: string;
  /** What the decision is about: `domain` for the host, `non_domain` for the way in which it was asked for. */
  scope: string;
  /** What has decided: `baseline_policy` for the rules of the start, `mode_guard` for its mode, `decider` for the client. */
  source: string;
  /** When, in RFC 3339. */
  timestamp: string;
}

/** `network/policyRequest`: the server asks whether a process may reach a host that no rule allows or denies. */
export interface NetworkPolicyRequestParams {
  /** The process. */
  processId: string;
  /** What it wants to reach. */
  request: NetworkTarget;
}

/** The answer to `network/policyRequest`. */
export interface NetworkPolicyRequestResult {
  /** What the client has decided. */
  decision: NetworkDecision;
}

/** How a process asks for a host. Clients must accept words that are not listed. */
export type NetworkProtocol = "http" | "https_connect" | "socks5_tcp" | "socks5_udp" | (string & {});

/** What a process wants to reach. */
export interface NetworkTarget {
  /** A name, or an address without brackets; 1 to 253 bytes without blanks and control characters. */
  host: string;
  /** The TCP port. */
  port: number;
  /** How it asked for it. */
  protocol: NetworkProtocol;
}

/** One piece of output in a `ProcessReadResult`. */
export interface ProcessChunk {
  /** When it was read, in milliseconds since the Unix epoch. */
  atMs?: number | null | undefined;
  /** Raw bytes; characters and lines may be split. */
  chunk: Base64Bytes;
  /** The number of the event in its process, from 1. */
  seq: number;
  /** Where it came from. */
  stream: ProcessStream;
}

/** `process/closeStdin`: end of file after everything accepted before. Idempotent. */
export interface ProcessCloseStdinParams {
  /** The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing. Absent: whichever runs now. */
  incarnation?: number | null | undefined;
  /** The process. */
  processId: string;
  /** Another session of the same identity. */
  sessionId?: string | null | undefined;
}

/** `process/closed`: the last event; the process has exited, and all output has been sent. */
export interface ProcessClosedParams {
  /** How much of that was evicted unread; absent in the base dialect. */
  evictedBytes: number | null;
  /** The start that it belongs to, if the process may be restarted: what follows a restart belongs to another. */
  incarnation?: number | null | undefined;
  /** The process. */
  processId: string;
  /** All output that the process produced; absent in the base dialect. */
  produced: ProcessProduced | null;
  /** The last number. */
  seq: number;
  /** The observed session it belongs to. */
  sessionId?: string | null | undefined;
}

/**
 * `process/collect`: forgets closed durable processes, the one that ended first before the others.
 *
 * Without `olderThanMs` and `keepBytes`, all of them; with both, those that either selects.
 */
export interface ProcessCollectParams {
  /** Whether only to say what would be forgotten. */
  dryRun?: boolean | undefined;
  /** As many as it takes until the logs of the others need at most this much disk space. */
  keepBytes?: number | null | undefined;
  /** Only those that ended at least this long ago. */
  olderThanMs?: number | null | undefined;
  /** Whose processes; absent: the session's. */
  scope?: ProcessScope | undefined;
}

/** The answer to `process/collect`. */
export interface ProcessCollectResult {
  /** The disk space of their logs. */
  bytes: number;
  /** How many in all. */
  count: number;
  /** The disk space of their logs. */
  keptBytes: number;
  /** How many closed durable processes are left. */
  keptCount: number;
  /** What was forgotten, or would be: the ones that ended first, at most 256. */
  processes: ProcessCollectedEntry[];
}

/** One process in a `ProcessCollectResult`. */
export interface ProcessCollectedEntry {
  /** The disk space of its log. */
  bytes: number;
  /** When it ended, in milliseconds since the Unix epoch. */
  endedAtMs: number;
  /** Whose session that is; only with the scope `all`. */
  identity?: string | null | undefined;
  /** The client's handle. */
  processId: string;
  /** The session it belongs to. */
  sessionId: string;
}

/** A host that a confined process asked for and did not reach, because its sandbox does not list it. */
export interface ProcessDeniedHost {
  /** How often it was refused. */
  count: number;
  /** The name or address. */
  host: string;
  /** The port. */
  port: number;
}

/** One process in a `ProcessListResult`. */
export interface ProcessEntry {
  /** The program and its arguments. */
  argv: string[];
  /** Why it ended. */
  cause: ProcessExitCause | null;
  /** CPU time of the tree; null when the system does not tell. */
  cpuMs: number | null;
  /** Where it was started. */
  cwd: HostPath;
  /** Whether it outlives the server. */
  durable?: boolean | undefined;
  /** When it exited; null until then. */
  endedAtMs: number | null;
  /** Null until it has exited. */
  exitCode: number | null;
  /** Whose session that is; only in a listing with the scope `all`. */
  identity?: string | null | undefined;
  /** Tells this start of the process from all others under its id, before and after a restart; absent from servers that cannot tell, and for a process that one of them has started. */
  incarnation?: number | null | undefined;
  /** As given at the start. */
  labels: Record<string, string>;
  /** The living processes of the tree, the smallest numbers first, at most 64. */
  livingPids: number[];
  /** The process id of the operating system; null before it is known. */
  pid: number | null;
  /** The client's handle. */
  processId: string;
  /** Its output so far. */
  produced: ProcessProduced;
  /** Resident memory of the tree; null when the system does not tell. */
  residentBytes: number | null;
  /** How much the server keeps: what can still be read, and the beginning for snapshots. */
  retainedBytes: number;
  /** The session it belongs to. */
  sessionId: string;
  /** The signal that ended it, such as `SIGKILL`. */
  signal: string | null;
  /** In milliseconds since the Unix epoch. */
  startedAtMs: number;
  /** How far it has come. */
  state: ProcessState;
  /** Whether it has a terminal. */
  tty: boolean;
  /** The user as whom it runs, as given at the start; absent: that of the server. */
  user?: string | null | undefined;
}

/** Where an `ProcessEnvPolicy` starts. */
export type ProcessEnvInherit = "all" | "core" | "none";

/**
 * What a child inherits of the server's environment.
 *
 * Patterns are globs with `*` and `?` that ignore case.
 */
export interface ProcessEnvPolicy {
  /** Patterns of names to drop. */
  exclude: string[];
  /** Keeps names with `KEY`, `SECRET` or `TOKEN` in them. */
  ignoreDefaultExcludes: boolean;
  /** Patterns of names to keep; empty: all. */
  includeOnly: string[];
  /** Where to start. */
  inherit: ProcessEnvInherit;
  /** Variables to add after that. */
  set: Record<string, string>;
}

/** Why a process ended. Clients must accept words that are not listed. */
export type ProcessExitCause = "exit" | "signal" | "timeout" | "idleTimeout" | "terminated" | "outOfMemory" | "serverLost" | (string & {});

/** `process/exited`: the process itself has ended; its earlier output has been sent. */
export interface ProcessExitedParams {
  /** Why it ended; absent in the base dialect. */
  cause: ProcessExitCause | null;
  /** The exit status, or 128 + signal number. */
  exitCode: number;
  /** The start that it belongs to, if the process may be restarted: what follows a restart belongs to another. */
  incarnation?: number | null | undefined;
  /** The hosts that the sandbox has refused by then. */
  networkDenied?: ProcessDeniedHost[] | undefined;
  /** The process. */
  processId: string;
  /** A hint that a failure was caused by the sandbox. */
  sandboxDenied: boolean;
  /** Follows the last output before the exit. */
  seq: number;
  /** The observed session it belongs to. */
  sessionId?: string | null | undefined;
  /** The signal that ended it, such as `SIGKILL`. */
  signal: string | null;
  /** Resources it used; absent in the base dialect. */
  usage: ProcessUsage | null;
}

/** `process/failed`, for clients with the capability `processFailed`. */
export interface ProcessFailedParams {
  /** What kind of failure, as in errors. */
  kind: RpcErrorKind;
  /** What failed, why, and what to do. */
  message: string;
  /** The process. */
  processId: string;
  /** The observed session it belongs to. */
  sessionId?: string | null | undefined;
}

/** `process/forget`: a process that has closed is forgotten now, with its output; its id is free. */
export interface ProcessForgetParams {
  /** The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing. Absent: whichever runs now. */
  incarnation?: number | null | undefined;
  /** The process. */
  processId: string;
  /** The session it is in; the connection's own if absent. */
  sessionId?: string | null | undefined;
}

/** Why a reader will never receive some events. Clients must accept words that are not listed. */
export type ProcessGapCause = "evicted" | "quota" | "diskFull" | "io" | "damaged" | (string & {});

/** `process/gap`, for clients with the capability `processGap`: output that was evicted before this reader got it. */
export interface ProcessGapParams {
  /** Output bytes in them; null for a reader so far behind that the server no longer knows its offset. */
  bytes: number | null;
  /** Why they are missing; null means that they were evicted. */
  cause?: ProcessGapCause | null | undefined;
  /** The first event that is missing. */
  fromSeq: number;
  /** The start that it belongs to, if the process may be restarted: what follows a restart belongs to another. */
  incarnation?: number | null | undefined;
  /** The process. */
  processId: string;
  /** The observed session it belongs to. */
  sessionId?: string | null | undefined;
  /** The last event that is missing. */
  toSeq: number;
}

/** A range of events that a reader will never receive. */
export interface ProcessGapRange {
  /** Output bytes in them; null for a reader so far behind that the server no longer knows its offset. */
  bytes: number | null;
  /** Why they are missing; null means that they were evicted. */
  cause?: ProcessGapCause | null | undefined;
  /** The first event that is missing. */
  fromSeq: number;
  /** The last event that is missing. */
  toSeq: number;
}

/** `process/list`: lists processes. */
export interface ProcessListParams {
  /** Whose processes; absent: the session's. */
  scope?: ProcessScope | undefined;
  /** Another session of the same identity. */
  sessionId?: string | null | undefined;
}

/** The answer to `process/list`. */
export interface ProcessListResult {
  /** Running processes, and ended ones that are still remembered. */
  processes: ProcessEntry[];
}

/** How the output of one process is kept; absent members mean the base's 1 MiB, 80 s and pause. */
export interface ProcessOutputOptions {
  /** What a full log does while a client is attached. */
  overflow?: ProcessOverflow | undefined;
  /** How much stays readable, up to the server's cap. */
  retainBytes?: number | null | undefined;
  /** How long it stays readable after `closed`. */
  retainMs?: number | null | undefined;
}

/** `process/output`: the next output of a process. */
export interface ProcessOutputParams {
  /** Raw bytes; characters and lines may be split. */
  chunk: Base64Bytes;
  /** The start that it belongs to, if the process may be restarted: what follows a restart belongs to another. */
  incarnation?: number | null | undefined;
  /** The process. */
  processId: string;
  /** From 1 and without gap over output, exit and close. */
  seq: number;
  /** The observed session it belongs to. */
  sessionId?: string | null | undefined;
  /** Where it came from. */
  stream: ProcessStream;
}

/** What happens when output arrives that an attached client has not made room for. */
export type ProcessOverflow = "pause" | "evict" | "hold";

/** Bytes per stream. */
export interface ProcessProduced {
  /** On the terminal. */
  pty: number;
  /** On standard error. */
  stderr: number;
  /** On standard output. */
  stdout: number;
}

/** `process/read`: output that is retained, or a wait for more. Reading consumes nothing. */
export interface ProcessReadParams {
  /** Exclusive; absent: 0, from the oldest. */
  afterSeq?: number | null | undefined;
  /** The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing. Absent: whichever runs now. */
  incarnation?: number | null | undefined;
  /** Decoded bytes; at most, and by default, 16 MiB. At least one chunk is returned if there is one. */
  maxBytes?: number | null | undefined;
  /** The process. */
  processId: string;
  /** Another session of the same identity. */
  sessionId?: string | null | undefined;
  /** How long to wait for new events; absent: 0. */
  waitMs?: number | null | undefined;
}

/** The answer to `process/read`. `afterSeq = nextSeq - 1` is a lossless cursor. */
export interface ProcessReadResult {
  /** Once it has exited, why. */
  cause?: ProcessExitCause | null | undefined;
  /** In order, each with a seq beyond `afterSeq`. */
  chunks: ProcessChunk[];
  /** Whether the process is closed: no more events will follow. The oldest dialect does not say. */
  closed: boolean;
  /** Once it is closed, how much of that was dropped before the session's client got it. */
  evictedBytes?: number | null | undefined;
  /** Null until it has exited. */
  exitCode: number | null;
  /** Whether the process has exited by now, wherever the cursor is. */
  exited: boolean;
  /** Why the server could not follow the process to its end, or why output of a process with `sync` may not survive a power failure; null otherwise. */
  failure: string | null;
  /** What was evicted between the cursor and the first chunk. */
  gap?: ProcessGapRange | null | undefined;
  /** Tells this start of the process from all others under its id, before and after a restart; absent from servers that cannot tell, and for a process that one of them has started. */
  incarnation?: number | null | undefined;
  /** The hosts that the sandbox has refused so far. */
  networkDenied?: ProcessDeniedHost[] | undefined;
  /** One past what this answer covers. */
  nextSeq: number;
  /** Once it is closed, all output that it produced. */
  produced?: ProcessProduced | null | undefined;
  /** A hint that a failure was caused by the sandbox. */
  sandboxDenied: boolean;
  /** Once it has exited, the signal that ended it, such as `SIGKILL`. */
  signal?: string | null | undefined;
  /** Once it has exited, what it used. */
  usage?: ProcessUsage | null | undefined;
}

/** `process/release`: no longer holds output for the controlling client while it is disconnected, until it reconnects. Idempotent. */
export interface ProcessReleaseParams {
  /** How long its session lives from now on without a connection, if it has none and would end sooner; at most as long as the server allows. Absent: as before. */
  detachTtlMs?: number | null | undefined;
  /** The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing. Absent: whichever runs now. */
  incarnation?: number | null | undefined;
  /** The process. */
  processId: string;
  /** The session it is in; the connection's own if absent. */
  sessionId?: string | null | undefined;
}

/** `process/resize`: the size of the terminal; a pipe process has none. */
export interface ProcessResizeParams {
  /** Width in characters. */
  cols: number;
  /** The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing. Absent: whichever runs now. */
  incarnation?: number | null | undefined;
  /** The process. */
  processId: string;
  /** Height in characters. */
  rows: number;
  /** Another session of the same identity. */
  sessionId?: string | null | undefined;
}

/**
 * Resource limits of a process; an absent member means no limit beyond those of the host.
 *
 * Unlike elsewhere, an unknown member is an error: a limit that is asked for is enforced or refused. `processLimits` of `environment/info` says how the server enforces each.
 */
export interface ProcessResourceLimits {
  /** CPU time of each process in seconds; then SIGXCPU, and SIGKILL a second later. */
  cpuSeconds?: number | null | undefined;
  /** The size of each file that they write. */
  fileBytes?: number | null | undefined;
  /** Memory of the process and its descendants together (cgroup), or address space of each of them (rlimit). */
  memoryBytes?: number | null | undefined;
  /** Open files of each process. */
  openFiles?: number | null | undefined;
  /** Processes and threads: of the process and its descendants together (cgroup), or of the whole user (rlimit). */
  processes?: number | null | undefined;
}

/**
 * When a program is run again after it has ended.
 *
 * All runs are one process with one output. An unknown member is an error: what is asked for is done or refused.
 */
export interface ProcessRestart {
  /** How often at most; absent: without end. */
  maxRestarts?: number | null | undefined;
  /** After which ends. */
  policy: ProcessRestartPolicy;
}

/** `process/restart`: ends the process and its whole tree, and starts it again under its id, as it was started. */
export interface ProcessRestartParams {
  /** How long its tree may take to end after SIGTERM; absent: it is killed at once. */
  graceMs?: number | null | undefined;
  /** The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing. Absent: whichever runs now. */
  incarnation?: number | null | undefined;
  /** The process; it may have ended already. */
  processId: string;
  /** Makes the restart idempotent: repeating it with the same id returns the first outcome. It is the `startId` of the new start. */
  restartId?: string | null | undefined;
  /** Another session of the same identity, to which no client is attached. */
  sessionId?: string | null | undefined;
}

/** After which ends a program is run again. */
export type ProcessRestartPolicy = "onFailure" | "always";

/** How a started process is confined. Clients must accept words that are not listed. */
export type ProcessSandboxType = "none" | "linuxSeccomp" | "macosSeatbelt" | "windowsRestrictedToken" | (string & {});

/** Whose processes are listed. */
export type ProcessScope = "session" | "identity" | "all";

/** `process/seek`: finds a position in the output, to read from there without reading what precedes it. */
export interface ProcessSeekParams {
  /** The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing. Absent: whichever runs now. */
  incarnation?: number | null | undefined;
  /** The process. */
  processId: string;
  /** Another session of the same identity. */
  sessionId?: string | null | undefined;
  /** Which position. */
  to: ProcessSeekPosition;
}

/** A position in the output of a process. */
export type ProcessSeekPosition = {
  atMs: number;
} | {
  offset: number;
} | {
  tailBytes: number;
};

/** The answer to `process/seek`. */
export interface ProcessSeekResult {
  /** The `afterSeq` of a read from there; 0 if that output is evicted, or may be, so that the read reports the gap. */
  afterSeq: number;
  /** The newest event. */
  newestSeq: number;
  /** Bytes of output before that position; null if the server no longer knows. */
  offset: number | null;
  /** Bytes of output so far. */
  producedBytes: number;
}

/** What the profile files of a login shell set up; captured once, for a command `[shell.path, "-lc", COMMAND, …]`. */
export interface ProcessShellSnapshot {
  /** Starts with the same scope share a snapshot, 1 to 256 bytes. */
  scopeId: string;
  /** The shell: `bash`, `zsh` or `sh`. */
  shell: EnvironmentShell;
}

/** `interrupt`, or a POSIX signal name, with or without `SIG`. */
export type ProcessSignalName = "interrupt" | "ABRT" | "SIGABRT" | "ALRM" | "SIGALRM" | "BUS" | "SIGBUS" | "CHLD" | "SIGCHLD" | "CONT" | "SIGCONT" | "FPE" | "SIGFPE" | "HUP" | "SIGHUP" | "ILL" | "SIGILL" | "INT" | "SIGINT" | "IO" | "SIGIO" | "KILL" | "SIGKILL" | "PIPE" | "SIGPIPE" | "POLL" | "SIGPOLL" | "PROF" | "SIGPROF" | "QUIT" | "SIGQUIT" | "SEGV" | "SIGSEGV" | "STOP" | "SIGSTOP" | "SYS" | "SIGSYS" | "TERM" | "SIGTERM" | "TRAP" | "SIGTRAP" | "TSTP" | "SIGTSTP" | "TTIN" | "SIGTTIN" | "TTOU" | "SIGTTOU" | "URG" | "SIGURG" | "USR1" | "SIGUSR1" | "USR2" | "SIGUSR2" | "VTALRM" | "SIGVTALRM" | "WINCH" | "SIGWINCH" | "XCPU" | "SIGXCPU" | "XFSZ" | "SIGXFSZ";

/** `process/signal`: a signal for the process group of the child. */
export interface ProcessSignalParams {
  /** The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing. Absent: whichever runs now. */
  incarnation?: number | null | undefined;
  /** The process. */
  processId: string;
  /** Another session of the same identity. */
  sessionId?: string | null | undefined;
  /** `interrupt`, or a POSIX name with or without `SIG`. */
  signal: ProcessSignalName;
}

/** `process/snapshot`: the retained output in one piece. */
export interface ProcessSnapshotParams {
  /** The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing. Absent: whichever runs now. */
  incarnation?: number | null | undefined;
  /** Over all streams; at most, and by default, 16 MiB. */
  maxBytes?: number | null | undefined;
  /** The process. */
  processId: string;
  /** Another session of the same identity. */
  sessionId?: string | null | undefined;
}

/** The answer to `process/snapshot`: head and tail are kept, the middle is dropped and counted. */
export interface ProcessSnapshotResult {
  /** Null until the process has exited. */
  exitCode: number | null;
  /** How much is missing. */
  omittedBytes: number;
  /** Whether it has not exited. */
  running: boolean;
  /** Empty for a terminal. */
  stderr: Base64Bytes;
  /** Empty for a terminal. */
  stdout: Base64Bytes;
  /** Empty for pipes. */
  terminal: Base64Bytes;
  /** Whether output is missing. */
  truncated: boolean;
}

/**
 * `process/start`: runs a program.
 *
 * A member of the base dialect that changes nothing here is accepted and ignored: `metadata`.
 */
export interface ProcessStartParams {
  /** What the program sees as its own name instead of `argv[0]`. */
  arg0?: string | null | undefined;
  /** The program and its arguments; a program without a slash is searched in the `PATH` of `env`. */
  argv: string[];
  /** The same as bytes, for words that are not UTF-8; if present, it replaces `argv`. */
  argvBase64?: Base64Bytes[] | null | undefined;
  /** Width of the terminal, 80 unless given. */
  cols?: number | null | undefined;
  /** The working directory; may be absent only with `user`, and is then the home of that account. */
  cwd?: HostPath | undefined;
  /** Whether the process outlives the server, with its output and exit; null means if the server can keep it. */
  durable?: boolean | null | undefined;
  /** Asks to reach the network only as `networkProxy` says, if the sandbox leaves the network open. */
  enforceManagedNetwork?: boolean | undefined;
  /** The whole environment, or overrides of `envPolicy`. */
  env: Record<string, string>;
  /** What the child inherits of the server's environment; absent: nothing. */
  envPolicy?: ProcessEnvPolicy | null | undefined;
  /** Time without output after which the process is ended. */
  idleTimeoutMs?: number | null | undefined;
  /** Gives the process and its descendants a pid namespace of their own, so that ending it leaves none of them behind. With a sandbox that confines anything it has one anyway. */
  isolatePids?: boolean | undefined;
  /** Words for people and tools; `process/list` shows them. */
  labels?: Record<string, string> | undefined;
  /** Resource limits; what cannot be enforced is refused. */
  limits?: ProcessResourceLimits | undefined;
  /** After exit, how long to wait for a background child that holds the output open; absent: until end of file. */
  lingerMs?: number | null | undefined;
  /** A proxy that runs on the client's side; this server cannot use it. */
  managedNetwork?: unknown | undefined;
  /** What `enforceManagedNetwork` is about; decoded only then. */
  networkProxy?: unknown | undefined;
  /** How its output is kept. */
  output?: ProcessOutputOptions | undefined;
  /** Keeps stdin of a pipe process writable; otherwise it is `/dev/null`. */
  pipeStdin?: boolean | undefined;
  /** The client's handle on the process, any string; unique within the session. */
  processId: string;
  /** Runs the program again when it ends; only where `processRestart` is among the `capabilities` of the environment. */
  restart?: ProcessRestart | null | undefined;
  /** Keeps this request in memory for `process/restart`; only where `processRestartRequest` is among the `capabilities` of the environment. */
  restartable?: boolean | undefined;
  /** Height of the terminal, 24 unless given. */
  rows?: number | null | undefined;
  /** The confinement asked for. */
  sandbox?: SandboxOrNull | undefined;
  /** Restores what the profile files of a login shell set up, instead of running them again. */
  shellSnapshot?: ProcessShellSnapshot | null | undefined;
  /** Makes the start idempotent: repeating it with the same id returns the first outcome and starts nothing. */
  startId?: string | null | undefined;
  /** Whether its output, of a durable process, is on the disk before clients see it, so that it survives a power failure. */
  sync?: boolean | undefined;
  /** How long the tree may take to end after SIGTERM when one of these times has passed; absent: it is killed at once. */
  timeoutGraceMs?: number | null | undefined;
  /** Wall-clock time after which the process is ended. */
  timeoutMs?: number | null | undefined;
  /** A terminal instead of pipes. */
  tty: boolean;
  /** The user of the host as whom it runs, by the name of the account or its uid in decimal digits; only where `processUser` is among the `capabilities` of the environment. */
  user?: string | null | undefined;
}

/** The answer to `process/start`. */
export interface ProcessStartResult {
  /** Tells this start of the process from all others under its id, before and after a restart; absent from servers that cannot tell, and for a process that one of them has started. */
  incarnation?: number | null | undefined;
  /** The process id of the operating system. */
  pid: number | null;
  /** As in the request. */
  processId: string;
  /** Whether this is the outcome of an earlier start with the same `startId`. */
  replayed: boolean;
  /** How the process is confined. */
  sandboxType: ProcessSandboxType;
  /** In milliseconds since the Unix epoch. */
  startedAtMs: number | null;
}

/** `process/started`, for clients with the capability `processStarted`. */
export interface ProcessStartedParams {
  /** The process id of the operating system. */
  pid: number;
  /** The process. */
  processId: string;
  /** The observed session it belongs to. */
  sessionId?: string | null | undefined;
}

/** How far a process has come. Clients must accept words that are not listed. */
export type ProcessState = "starting" | "running" | "exited" | "closed" | (string & {});

/** Where output comes from. Clients must accept words that are not listed. */
export type ProcessStream = "stdout" | "stderr" | "pty" | (string & {});

/** How a process is ended. */
export type ProcessTerminateMode = "force" | {
  graceful: {
    /** The time between the two. */
    timeoutMs: number;
  };
};

/** `process/terminate`: ends the process and its whole tree. An unknown or ended process is not an error. */
export interface ProcessTerminateParams {
  /** The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing. Absent: whichever runs now. */
  incarnation?: number | null | undefined;
  /** How to end it; absent: `SIGKILL` at once. */
  mode?: ProcessTerminateMode | undefined;
  /** The process. */
  processId: string;
  /** Which of its descendants to end; absent: depends on its state. */
  scope?: ProcessTerminateScope | undefined;
  /** Another session of the same identity. */
  sessionId?: string | null | undefined;
}

/** The answer to `process/terminate`. */
export interface ProcessTerminateResult {
  /** Whether the process was still running when the request arrived. */
  running: boolean;
}

/** How much of a process is ended. */
export type ProcessTerminateScope = "usual" | "tree";

/** Resources used by a process. */
export interface ProcessUsage {
  /** Null if the kernel reports the server's own peak instead. */
  maxRssBytes: number | null;
  /** CPU time in the kernel. */
  systemMs: number;
  /** CPU time in its own code. */
  userMs: number;
  /** From start to exit. */
  wallMs: number;
}

/** What a `process/wait` waits for. */
export type ProcessWaitCondition = "exit" | "closed" | {
  output: {
    /** Exclusive; absent: from the oldest retained. */
    afterSeq?: number | null | undefined;
    /** Over bytes; a match may cross chunks. */
    regex: string;
  };
} | {
  idleMs: number;
};

/** `process/wait`: waits for a condition; returns at once if it already holds. */
export interface ProcessWaitParams {
  /** The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing. Absent: whichever runs now. */
  incarnation?: number | null | undefined;
  /** The process. */
  processId: string;
  /** Another session of the same identity. */
  sessionId?: string | null | undefined;
  /** What to wait for; absent: the exit. */
  until?: ProcessWaitCondition | undefined;
  /** How long to wait; absent: without limit. */
  waitMs?: number | null | undefined;
}

/** Why a wait is over. Clients must accept words that are not listed. */
export type ProcessWaitReason = "exit" | "closed" | "output" | "idle" | "timeout" | (string & {});

/** The answer to `process/wait`; what is not known is null. */
export interface ProcessWaitResult {
  /** Why it ended. */
  cause: ProcessExitCause | null;
  /** Null until the process has exited. */
  exitCode: number | null;
  /** The bytes that matched. */
  match: Base64Bytes | null;
  /** Why the wait is over. */
  reason: ProcessWaitReason;
  /** The event that ended it, or the newest one. */
  seq: number | null;
  /** The signal that ended it, such as `SIGKILL`. */
  signal: string | null;
}

/** `process/write`: bytes for stdin, delivered in the order of the requests. */
export interface ProcessWriteParams {
  /** What to write; may be empty. */
  chunk: Base64Bytes;
  /** The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing. Absent: whichever runs now. */
  incarnation?: number | null | undefined;
  /** The process. */
  processId: string;
  /** Another session of the same identity. */
  sessionId?: string | null | undefined;
  /** Makes the write idempotent: an accepted id is never written twice. Never empty; clients of v0 send none. */
  writeId?: string | null | undefined;
}

/** The answer to `process/write`, in the words of two dialects. */
export interface ProcessWriteResult {
  /** The same for clients of v0: whether `status` is `accepted`. */
  accepted: boolean;
  /** What became of the bytes; in the oldest dialect only `accepted` says it. */
  status: ProcessWriteStatus;
}

/** What became of the bytes of a `process/write`. Clients must accept words that are not listed. */
export type ProcessWriteStatus = "accepted" | "unknownProcess" | "stdinClosed" | "starting" | (string & {});

/** `request/cancel`, a notification for clients with the capability `cancel`: the request ends with an error; nothing is undone. */
export interface RequestCancelParams {
  /** The id of the request, with the type it was sent with. */
  id: RpcRequestId;
}

/** The empty answer `{}`. */
export type RpcEmptyResult = Record<string, unknown>;

/** The shape of an error on the wire. */
export interface RpcError {
  code: number;
  /** Omitted when empty. */
  data?: RpcErrorData | null | undefined;
  message: string;
}

export interface RpcErrorData {
  cwd?: string | null | undefined;
  hint?: string | null | undefined;
  kind?: RpcErrorKind | null | undefined;
  program?: string | null | undefined;
  restarted?: boolean | undefined;
}

/** The kind of error: a stable word for programs. Clients must accept words that are not listed. */
export type RpcErrorKind = "malformed" | "handshake" | "unknownMethod" | "invalidParams" | "unknownSession" | "sessionAttached" | "sessionNameTaken" | "unknownProcess" | "processExists" | "processStarting" | "startIdMismatch" | "programNotFound" | "notExecutable" | "badCwd" | "tooManyProcesses" | "spawnFailed" | "limitExceeded" | "notFound" | "invalidInput" | "notAFile" | "alreadyExists" | "isADirectory" | "notADirectory" | "notEmpty" | "symbolicLink" | "noSpace" | "crossDevice" | "contentChanged" | "io" | "unknownHandle" | "idInUse" | "httpFailed" | "permissionDenied" | "sandboxUnavailable" | "userUnavailable" | "notATerminal" | "stdinClosed" | "cancelled" | "shuttingDown" | "notSupported" | "internal" | "other" | (string & {});

/** The id that matches an answer to its request; echoed with its original type. */
export type RpcRequestId = number | string;

/** The member `trace` of a request, with whatever the client wrote in it. */
export interface RpcTrace {
  /** The trace, the span that made the request, and whether they are recorded. */
  traceparent?: string | null | undefined;
  /** What other tracing systems know about the trace. */
  tracestate?: string | null | undefined;
}

/** The access to a path. */
export type SandboxAccess = "read" | "write" | "deny";

/** Everything a client says about confinement. */
export interface SandboxContext {
  /** What relative permissions start from. */
  cwd?: HostPath | null | undefined;
  /** The hosts that a process reaches through the server's proxy, and nothing else of the network, whatever `network` says. An extension. */
  hosts?: SandboxHosts | null | undefined;
  /** What is allowed. */
  permissions: SandboxPermissions;
  /** Replaces `cwd` and `workspaceRoots` where permissions are concerned; file requests have it. */
  policyContext?: SandboxPolicyContext | null | undefined;
  /** Whether a `write` entry for a path that does not exist is an error, and does not just grant nothing. An extension. */
  refuseMissingWrites?: boolean | null | undefined;
  /** What `tmpdir` stands for in requests that have no environment variables. */
  temporaryDirectories?: HostPath[] | null | undefined;
  /** Asks the base server for its older way to confine processes; changes nothing that is allowed. */
  useLegacyLandlock?: boolean | null | undefined;
  /** The home directory of the user on this host, as the client knows it. */
  userHomeDir?: HostPath | null | undefined;
  /** Of no meaning here, but clients must send it. */
  windowsSandboxLevel: string;
  /** What `project_roots` stands for. */
  workspaceRoots?: HostPath[] | null | undefined;
}

/** Access to one path. */
export interface SandboxEntry {
  /** The access. */
  access: SandboxAccess;
  /** What to do if the path does not exist. */
  missing_path_behavior?: SandboxMissingPathBehavior | null | undefined;
  /** The path. */
  path: SandboxEntryPath;
}

/** A path in the file system. */
export type SandboxEntryPath = {
  /** The path. */
  path: HostPath;
  type: "path";
} | {
  /** The pattern. */
  pattern: string;
  type: "glob_pattern";
} | {
  type: "special";
  /** The name. */
  value: SandboxSpecialPath;
};

/** Access to files. */
export type SandboxFileSystem = {
  type: "unrestricted";
} | {
  /** The more specific entry decides. */
  entries: SandboxEntry[];
  type: "restricted";
};

/** Hosts as `HOST` or `HOST:PORT`, where `HOST` is a name, `*.DOMAIN`, `**.DOMAIN`, `*` or an address. */
export interface SandboxHosts {
  /** What may be reached. */
  allow: string[];
  /** What may not be reached, even if `allow` matches it. */
  deny?: string[] | undefined;
}

/** What an entry means if its path does not exist. */
export type SandboxMissingPathBehavior = "skip" | "other";

/** Access to the network. */
export type SandboxNetwork = "restricted" | "enabled";

export type SandboxOrNull = SandboxContext | null;

/** What is allowed. Unlike everything else on the wire its members are in snake case. */
export type SandboxPermissions = {
  type: "disabled";
} | {
  /** Access to the network. */
  network: SandboxNetwork;
  type: "external";
} | {
  /** Access to files. */
  file_system: SandboxFileSystem;
  /** Access to the network. */
  network: SandboxNetwork;
  type: "managed";
};

/** What permissions are relative to. */
export interface SandboxPolicyContext {
  /** What relative permissions start from. */
  cwd?: HostPath | null | undefined;
  /** What `project_roots` stands for. */
  workspaceRoots?: HostPath[] | null | undefined;
}

/** A path that the server knows by name. */
export type SandboxSpecialPath = {
  kind: "root";
} | {
  kind: "minimal";
} | {
  kind: "project_roots";
  /** Below each root. */
  subpath?: string | null | undefined;
} | {
  kind: "tmpdir";
} | {
  kind: "slash_tmp";
} | {
  kind: "unknown";
};

/** `session/end`: ends the processes of a session, then the session. */
export interface SessionEndParams {
  /** A session of the same identity. */
  sessionId: string;
}

/** `session/ended`, for observers: the session has ended. The last events of its processes may follow. */
export interface SessionEndedParams {
  /** The observed session. */
  sessionId: string;
}

/** One session in a `SessionListResult`. */
export interface SessionEntry {
  /** Whether a connection controls it now. */
  attached: boolean;
  /** What the client that attached last calls itself. */
  clientName: string;
  /** When it lost its connection, in milliseconds since the Unix epoch; null while attached. */
  detachedAtMs: number | null;
  /** When it expires unless a client resumes it; null while attached, or if it lives as long as the server. */
  expiresAtMs: number | null;
  /** Whose session it is, such as `owner` or `token:ci`. */
  identity?: string | undefined;
  /** The name its client chose. */
  name: string | null;
  /** How many processes it holds, ended but remembered ones included. */
  processes: number;
  /** The id that resumes it. */
  sessionId: string;
}

/** `session/list`: lists the sessions of the identity. */
export interface SessionListParams {
  /** Whose sessions; absent: the identity's. */
  scope?: SessionScope | undefined;
}

/** The answer to `session/list`. */
export interface SessionListResult {
  /** Every live session that was asked for. */
  sessions: SessionEntry[];
}

/** `session/observe`: from now on this connection gets that session's notifications too, each with its `sessionId`. */
export interface SessionObserveParams {
  /** Per process, the first event wanted; processes that are not named start now. */
  fromSeq?: Record<string, number> | null | undefined;
  /** The first event wanted of processes that `fromSeq` does not name; without it, they start now. */
  othersFromSeq?: number | null | undefined;
  /** A session of the same identity. */
  sessionId: string;
}

/** Whose sessions are listed. */
export type SessionScope = "identity" | "all";

/** `session/unobserve`: ends what `session/observe` began. */
export interface SessionUnobserveParams {
  /** The observed session. */
  sessionId: string;
}

/** The params and the result of every method. */
export interface Methods {
  "capabilities/discoverV2": { params: CapabilitiesDiscoverV2Params; result: CapabilitiesDiscoverV2Result };
  "capabilityRoots/discoverV1": { params: CapabilityRootsDiscoverV1Params; result: CapabilityRootsDiscoverV1Result };
  "environment/info": { params: EnvironmentInfoParams; result: EnvironmentInfo };
  "environment/status": { params: EnvironmentStatusParams; result: EnvironmentStatusResult };
  "environmentConfig/read": { params: EnvironmentConfigReadParams; result: EnvironmentConfigReadResult };
  "fs/canonicalize": { params: FsCanonicalizeParams; result: FsCanonicalizeResult };
  "fs/close": { params: FsCloseParams; result: RpcEmptyResult };
  "fs/copy": { params: FsCopyParams; result: RpcEmptyResult };
  "fs/createDirectory": { params: FsCreateDirectoryParams; result: RpcEmptyResult };
  "fs/getMetadata": { params: FsGetMetadataParams; result: FsMetadata };
  "fs/hash": { params: FsHashParams; result: FsHashResult };
  "fs/open": { params: FsOpenParams; result: FsOpenResult };
  "fs/readBlock": { params: FsReadBlockParams; result: FsReadBlockResult };
  "fs/readDirectory": { params: FsReadDirectoryParams; result: FsReadDirectoryResult };
  "fs/readFile": { params: FsReadFileParams; result: FsReadFileResult };
  "fs/readLink": { params: FsReadLinkParams; result: FsReadLinkResult };
  "fs/remove": { params: FsRemoveParams; result: RpcEmptyResult };
  "fs/rename": { params: FsRenameParams; result: RpcEmptyResult };
  "fs/search": { params: FsSearchParams; result: FsSearchResult };
  "fs/setPermissions": { params: FsSetPermissionsParams; result: FsSetPermissionsResult };
  "fs/setTimes": { params: FsSetTimesParams; result: RpcEmptyResult };
  "fs/symlink": { params: FsSymlinkParams; result: RpcEmptyResult };
  "fs/unwatch": { params: FsUnwatchParams; result: RpcEmptyResult };
  "fs/walk": { params: FsWalkParams; result: FsWalkResult };
  "fs/watch": { params: FsWatchParams; result: RpcEmptyResult };
  "fs/watchMissing": { params: FsWatchMissingParams; result: FsWatchMissingResult };
  "fs/writeBlock": { params: FsWriteBlockParams; result: RpcEmptyResult };
  "fs/writeFile": { params: FsWriteFileParams; result: FsWriteFileResult };
  "http/request": { params: HttpRequestParams; result: HttpRequestResult };
  "initialize": { params: InitializeParams; result: InitializeResult };
  "process/closeStdin": { params: ProcessCloseStdinParams; result: RpcEmptyResult };
  "process/collect": { params: ProcessCollectParams; result: ProcessCollectResult };
  "process/forget": { params: ProcessForgetParams; result: RpcEmptyResult };
  "process/list": { params: ProcessListParams; result: ProcessListResult };
  "process/read": { params: ProcessReadParams; result: ProcessReadResult };
  "process/release": { params: ProcessReleaseParams; result: RpcEmptyResult };
  "process/resize": { params: ProcessResizeParams; result: RpcEmptyResult };
  "process/restart": { params: ProcessRestartParams; result: ProcessStartResult };
  "process/seek": { params: ProcessSeekParams; result: ProcessSeekResult };
  "process/signal": { params: ProcessSignalParams; result: RpcEmptyResult };
  "process/snapshot": { params: ProcessSnapshotParams; result: ProcessSnapshotResult };
  "process/start": { params: ProcessStartParams; result: ProcessStartResult };
  "process/terminate": { params: ProcessTerminateParams; result: ProcessTerminateResult };
  "process/wait": { params: ProcessWaitParams; result: ProcessWaitResult };
  "process/write": { params: ProcessWriteParams; result: ProcessWriteResult };
  "session/end": { params: SessionEndParams; result: RpcEmptyResult };
  "session/list": { params: SessionListParams; result: SessionListResult };
  "session/observe": { params: SessionObserveParams; result: RpcEmptyResult };
  "session/unobserve": { params: SessionUnobserveParams; result: RpcEmptyResult };
}

/** The params of every notification of a client. */
export interface ClientNotifications {
  "flow/ack": FlowAckParams;
  "flow/bodyConsumed": FlowBodyConsumedParams;
  "flow/consumed": FlowConsumedParams;
  "initialized": InitializedParams;
  "request/cancel": RequestCancelParams;
}

/** The params of every notification of a server. */
export interface ServerNotifications {
  "flow/mark": FlowMarkParams;
  "fs/changed": FsChangedParams;
  "fs/missingChanged": FsMissingChangedParams;
  "http/request/bodyDelta": HttpRequestBodyDeltaParams;
  "network/policyDecision": NetworkPolicyDecisionParams;
  "process/closed": ProcessClosedParams;
  "process/exited": ProcessExitedParams;
  "process/failed": ProcessFailedParams;
  "process/gap": ProcessGapParams;
  "process/output": ProcessOutputParams;
  "process/started": ProcessStartedParams;
  "session/ended": SessionEndedParams;
}
