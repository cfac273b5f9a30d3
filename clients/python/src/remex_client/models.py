"""The params and results of the protocol, as they are on the wire.

Generated from spec/protocol.schema.json by scripts/generate_models.py; do not edit.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypedDict

#: Bytes as standard base64 with padding.
Base64Bytes: TypeAlias = "str"

#: Standard base64 with padding; invalid base64 is reported by the method, not as invalid params.
Base64Text: TypeAlias = "str"

class CapabilitiesDiscoverV2Params(TypedDict):
    """`capabilities/discoverV2`: the plugins and skills that the host's user has installed."""
    #: Where the client works.
    cwd: HostPath

class CapabilitiesDiscoverV2Result(TypedDict):
    """The answer to `capabilities/discoverV2`."""
    #: The plugins, sorted by id.
    plugins: list[CapabilitiesPlugin]
    #: The skills that are part of no plugin.
    skills: list[CapabilitiesSkill]
    #: What was left out, and why.
    warnings: list[str]

class CapabilitiesDiscoveryRoot(TypedDict):
    """A directory for skills."""
    #: `codex-home-skills` or `user-agent-skills`.
    id: str
    #: The directory.
    path: HostPath

class CapabilitiesPlugin(TypedDict):
    """An installed plugin."""
    #: For people.
    displayName: str
    #: Its files.
    files: CapabilitiesPluginFiles
    #: `NAME@MARKETPLACE`.
    id: str
    #: Always null: this server installs no plugins from elsewhere.
    remotePluginId: str | None
    #: Where it is installed.
    root: HostPath
    #: Its skills, sorted by URI.
    skills: list[CapabilitiesSkill]
    #: The newest that is installed.
    version: str | None

class CapabilitiesPluginFiles(TypedDict):
    """The files that describe a plugin."""
    #: Its apps: the file that the manifest names, or `.app.json`.
    appsConfig: CapabilitiesTextFile | None
    #: `plugin.json`.
    manifest: CapabilitiesTextFile
    #: Its MCP servers: the file that the manifest names, or `.mcp.json`.
    mcpConfig: CapabilitiesTextFile | None

class _CapabilitiesSkill(TypedDict):
    #: What it needs.
    dependencies: CapabilitiesSkillDependencies | None
    #: What it is for.
    description: str
    #: Its name, that of a plugin with `PLUGIN:` before it.
    name: str
    #: Its `SKILL.md`.
    path: HostPath
    #: When it may be used.
    policy: CapabilitiesSkillPolicy | None
    #: The same in a few words.
    shortDescription: str | None


class CapabilitiesSkill(_CapabilitiesSkill, total=False):
    """What a skill says about itself."""
    #: Where it was found; absent for the skills of a plugin.
    discoveryRoot: CapabilitiesDiscoveryRoot | None

class CapabilitiesSkillDependencies(TypedDict):
    """What a skill needs."""
    #: Tools.
    tools: list[CapabilitiesSkillTool]

class CapabilitiesSkillFiles(TypedDict):
    """The files that describe a skill."""
    #: `SKILL.md`.
    instructions: CapabilitiesTextFile
    #: `agents/openai.yaml` beside it.
    metadata: CapabilitiesTextFile | None

class CapabilitiesSkillPolicy(TypedDict):
    """When a skill may be used."""
    #: False: only if the user names it.
    allowImplicitInvocation: bool | None
    #: The products that may use it; empty: all.
    products: list[str]

class CapabilitiesSkillTool(TypedDict):
    """A tool that a skill needs."""
    #: The program that runs it.
    command: str | None
    #: What it is for.
    description: str | None
    #: The port that receives its authorization.
    oauthCallbackPort: int | None
    #: How it is reached.
    transport: str | None
    #: Such as `mcp`.
    type: str
    #: Where it is.
    url: str | None
    #: Which one.
    value: str

class CapabilitiesTextFile(TypedDict):
    """A file with its text."""
    #: Its text.
    contents: str
    #: The file.
    path: HostPath

class CapabilityRootsDiscoverV1Params(TypedDict):
    """`capabilityRoots/discoverV1`: the plugins and skills in directories."""
    #: The directories, at most 128.
    roots: list[CapabilityRootsRoot]

class CapabilityRootsDiscoverV1Result(TypedDict):
    """The answer to `capabilityRoots/discoverV1`, in the order of the request."""
    #: One for each directory.
    roots: list[CapabilityRootsFound]

class CapabilityRootsFound(TypedDict):
    """What a directory contains."""
    #: Why the directory could not be searched.
    error: str | None
    #: As in the request.
    id: str
    #: The manifests of the directory and of the plugins below it.
    namespaceManifests: list[CapabilitiesTextFile]
    #: As in the request.
    path: HostPath
    #: The files of the plugin that the directory is.
    plugin: CapabilitiesPluginFiles | None
    #: The skills in it and below, sorted by URI.
    skills: list[CapabilitiesSkillFiles]
    #: What was left out, and why.
    warnings: list[str]

class _CapabilityRootsRoot(TypedDict):
    #: Any string; returned as it is.
    id: str
    #: The directory.
    path: HostPath


class CapabilityRootsRoot(_CapabilityRootsRoot, total=False):
    """A directory to search."""
    #: The confinement asked for.
    sandbox: SandboxOrNull

class EnvironmentConfigLayer(TypedDict):
    """The selected keys of one file."""
    #: What relative paths in it start from.
    baseDir: HostPath
    #: Which file it is, for people.
    source: str
    #: The keys as TOML.
    toml: str

class EnvironmentConfigLayers(TypedDict):
    """Layers from lowest to highest precedence."""
    #: Where the client puts layers of its own.
    cloudInsertionIndex: int
    #: One for each file that has any of the keys.
    layers: list[EnvironmentConfigLayer]

class EnvironmentConfigReadParams(TypedDict):
    """`environmentConfig/read`: selected parts of the configuration files on the host."""
    #: Which keys of the configuration, each as the segments of its path.
    configPaths: list[list[str]]
    #: Where the client works.
    cwd: HostPath
    #: Which keys of the requirements.
    requirementsPaths: list[list[str]]

class EnvironmentConfigReadResult(TypedDict):
    """The answer to `environmentConfig/read`."""
    #: Where the user's configuration is.
    codexHomeDir: HostPath | None
    #: The configuration.
    config: EnvironmentConfigLayers
    #: The host's name.
    hostname: str | None
    #: What administrators demand.
    requirements: EnvironmentConfigLayers
    #: The user's home directory.
    userHomeDir: HostPath | None

class EnvironmentConfinement(TypedDict):
    """What a host can enforce for processes with a `sandbox`."""
    #: How to enable what is missing; null if nothing is.
    hint: str | None
    #: The version of the kernel's Landlock; null if there is none.
    landlockAbi: int | None
    #: What confines processes.
    processes: EnvironmentProcessConfinement
    #: Why not every profile can be enforced; null if all can.
    reason: str | None

class EnvironmentFeatures(TypedDict):
    """What a server implements beyond the plain methods: only what is listed here can be true."""
    #: `sandbox` of the roots of `capabilityRoots/discoverV1`.
    capabilityDiscoverySandbox: bool
    #: `capabilityRoots/discoverV1` and `capabilities/discoverV2`.
    capabilityDiscoveryV2: bool
    #: `environmentConfig/read`.
    environmentConfigRead: bool
    #: `fs/open` with `mode: "replace"`, and `fs/writeBlock`.
    fileWriteStreaming: bool
    #: `fs/watchMissing`.
    fsWatchMissing: bool
    #: `valueEnvVar` in the headers of `http/request`.
    httpHeaderEnvVars: bool
    #: `networkProxy` of `process/start`.
    networkProxyLaunch: bool
    #: `incarnation` in answers and requests about processes.
    processIncarnation: bool
    #: `restart` of `process/start`.
    processRestart: bool
    #: `process/restart`, and `restartable` of `process/start`.
    processRestartRequest: bool
    #: `user` of `process/start`.
    processUser: bool
    #: `sandbox` of `fs/open`.
    sandboxedFileStreaming: bool
    #: `shellSnapshot` of `process/start`.
    shellSnapshotV2: bool

class _EnvironmentInfo(TypedDict):
    #: What the server implements; absent is false.
    capabilities: EnvironmentFeatures
    #: The server's working directory.
    cwd: HostPath | None
    #: The version of the server.
    executorVersion: str
    #: `linux`.
    platformOs: str
    #: Directories to prepend to the `PATH` of commands.
    prependPathDirs: list[HostPath]
    #: An opaque id: the same for the same installation on the same host.
    providerId: str
    #: The user's login shell.
    shell: EnvironmentShell
    #: Where programs put temporary files.
    tempDir: HostPath | None
    #: The directory in `TMPDIR`, if it is set.
    temporaryDirectories: list[HostPath]
    #: The user's home directory.
    userHomeDir: HostPath | None


class EnvironmentInfo(_EnvironmentInfo, total=False):
    """The answer to `environment/info`, also in the answer to `initialize`."""
    #: What the host can enforce; only in the answer to `environment/info`, because it takes time to find out.
    confinement: EnvironmentConfinement | None
    #: How the server enforces `limits` of `process/start`; absent: it ignores them.
    processLimits: EnvironmentProcessLimits | None
    #: Which processes the server starts; absent: any.
    starts: EnvironmentStarts | None
    #: What the server keeps for processes that outlive it; absent: all processes end with it. Only in the
    #: answer to `environment/info`, because it changes.
    state: EnvironmentState | None

#: `environment/info`: facts about the host.
EnvironmentInfoParams: TypeAlias = "dict[str, Any]"

class EnvironmentKeeper(TypedDict):
    """The process that runs durable processes and outlives the server."""
    #: Its process id on the host.
    pid: int
    #: Whether it has answered the server within 2 s.
    responds: bool
    #: Its version, which may be older than that of the server; null if it does not respond.
    version: str | None

#: How a limit is enforced. Clients must accept words that are not listed.
EnvironmentLimitMethod: TypeAlias = "str"

#: What confines processes. Clients must accept words that are not listed.
EnvironmentProcessConfinement: TypeAlias = "str"

class EnvironmentProcessLimits(TypedDict):
    """How a server enforces each of the limits of a process."""
    #: CPU time.
    cpuSeconds: EnvironmentLimitMethod
    #: The size of files.
    fileBytes: EnvironmentLimitMethod
    #: Memory.
    memoryBytes: EnvironmentLimitMethod
    #: Open files.
    openFiles: EnvironmentLimitMethod
    #: Processes and threads.
    processes: EnvironmentLimitMethod
    #: Why the server uses no cgroup for memory or processes; null if it uses one for both.
    withoutCgroup: str | None

class EnvironmentShell(TypedDict):
    """A shell."""
    #: Such as `bash`.
    name: str
    #: A native path.
    path: str

#: Which processes a server starts. Clients must accept words that are not listed.
EnvironmentStarts: TypeAlias = "str"

class EnvironmentState(TypedDict):
    """The state directory of a server, where it keeps processes that outlive it."""
    #: Where it is.
    directory: HostPath | None
    #: How many closed ones have a log that is kept; null if the keeper does not respond.
    endedProcesses: int | None
    #: The process that runs durable processes; null while the server starts another one.
    keeper: EnvironmentKeeper | None
    #: Disk space that they may use, in bytes.
    quotaBytes: int | None
    #: How many durable processes have not closed; null if the keeper does not respond.
    runningProcesses: int | None
    #: Disk space that the logs of durable processes use, in bytes; null if the keeper does not respond.
    usedBytes: int | None

#: Whether an environment can be used. Clients must accept words that are not listed.
EnvironmentStatus: TypeAlias = "str"

#: `environment/status`.
EnvironmentStatusParams: TypeAlias = "dict[str, Any]"

class EnvironmentStatusResult(TypedDict):
    """The answer to `environment/status`."""
    #: Whether it can be used.
    status: EnvironmentStatus

class FlowAckParams(TypedDict):
    """`flow/ack`, from the client: everything before this mark has arrived."""
    #: The newest mark seen; it acknowledges the earlier ones too.
    mark: int

class FlowBodyConsumedParams(TypedDict):
    """`flow/bodyConsumed`, from the client: the client has consumed the parts of a streamed body up to
    `seq`."""
    #: A stream of the connection.
    requestId: str
    #: The last consumed part; never decreases.
    seq: int

class _FlowConsumedParams(TypedDict):
    #: A process of the connection's own session.
    processId: str
    #: The last consumed event; never decreases.
    seq: int


class FlowConsumedParams(_FlowConsumedParams, total=False):
    """`flow/consumed`, from the client: the client has consumed the events of a process up to `seq`."""
    #: The start that it was read from: if the process was restarted since, this says nothing about the new
    #: one.
    incarnation: int | None

class FlowMarkParams(TypedDict):
    """`flow/mark`, from the server: acknowledge when you have read this far."""
    #: Grows with each mark of one connection.
    mark: int

class _FsCanonicalizeParams(TypedDict):
    #: The path.
    path: HostPath


class FsCanonicalizeParams(_FsCanonicalizeParams, total=False):
    """`fs/canonicalize`: the path without symbolic links; it must exist."""
    #: The confinement asked for.
    sandbox: SandboxOrNull

class FsCanonicalizeResult(TypedDict):
    """The answer to `fs/canonicalize`."""
    #: With all links resolved.
    path: HostPath

class FsChange(TypedDict):
    """One path in `fs/changed`."""
    #: What.
    kind: FsChangeKind
    #: Where.
    path: HostPath

#: What happened at a path; a move is one `removed` and one `created`. Clients must accept words that are not
#: listed.
FsChangeKind: TypeAlias = "str"

class FsChangedParams(TypedDict):
    """`fs/changed`, from the server: the changes since the previous notification, sent once events have
    settled."""
    #: Each path once, however often it changed.
    changes: list[FsChange]
    #: Too many changes to report: rescan everything.
    overflow: bool
    #: The watch.
    watchId: int

class _FsCloseParams(TypedDict):
    #: The handle.
    handleId: str


class FsCloseParams(_FsCloseParams, total=False):
    """`fs/close`: ends a handle; an unknown handle is not an error."""
    #: With an `atomic` handle: keeps the old file and discards what was written.
    discard: bool

#: `sha256:` and 64 hexadecimal digits.
FsContentHash: TypeAlias = "str"

class _FsCopyParams(TypedDict):
    #: To here.
    destinationPath: HostPath
    #: Needed for directories.
    recursive: bool
    #: From here.
    sourcePath: HostPath


class FsCopyParams(_FsCopyParams, total=False):
    """`fs/copy`: a file with its mode, a link as a link, or a directory with its contents."""
    #: The confinement asked for.
    sandbox: SandboxOrNull

class _FsCreateDirectoryParams(TypedDict):
    #: The directory.
    path: HostPath


class FsCreateDirectoryParams(_FsCreateDirectoryParams, total=False):
    """`fs/createDirectory`."""
    #: False refuses symbolic links anywhere in the path.
    followSymlinks: bool | None
    #: Creates missing parents, and accepts an existing directory; true unless given.
    recursive: bool | None
    #: The confinement asked for.
    sandbox: SandboxOrNull

class _FsDirectoryEntry(TypedDict):
    #: For people: bytes that are not UTF-8 are replaced.
    fileName: str
    #: A directory, or a link to one.
    isDirectory: bool
    #: A regular file, or a link to one.
    isFile: bool


class FsDirectoryEntry(_FsDirectoryEntry, total=False):
    """One entry of a `FsReadDirectoryResult`."""
    #: With `limit`: the entry itself is a symbolic link.
    isSymlink: bool | None
    #: With `details`: of the entry itself, links not followed.
    metadata: FsMetadata | None
    #: With `limit`: its exact path.
    path: HostPath | None

class _FsFoundFile(TypedDict):
    #: How many of its lines match, as far as it was searched.
    count: int
    #: Where it is.
    path: HostPath


class FsFoundFile(_FsFoundFile, total=False):
    """A file that a `fs/search` found."""
    #: Those lines, and the lines around them.
    lines: list[FsFoundLine]

class _FsFoundLine(TypedDict):
    #: Its number, from 1.
    number: int
    #: Its text without the line end; bytes that are not UTF-8 are replaced.
    text: str


class FsFoundLine(_FsFoundLine, total=False):
    """A line of a `FsFoundFile`."""
    #: Whether it matches, or is only near a match.
    isMatch: bool
    #: How many bytes of the line after the text are left out.
    omittedAfter: int
    #: How many bytes of the line before the text are left out, because it is long.
    omittedBefore: int

class _FsGetMetadataParams(TypedDict):
    #: The path.
    path: HostPath


class FsGetMetadataParams(_FsGetMetadataParams, total=False):
    """`fs/getMetadata`: what a path names."""
    #: False refuses symbolic links anywhere in the path.
    followSymlinks: bool | None
    #: The confinement asked for.
    sandbox: SandboxOrNull

class _FsHashParams(TypedDict):
    #: The file.
    path: HostPath


class FsHashParams(_FsHashParams, total=False):
    """`fs/hash`: the hash of a regular file, or of a part of it."""
    #: False refuses symbolic links anywhere in the path.
    followSymlinks: bool | None
    #: How long the part is; absent: up to the end of the file.
    len: int | None
    #: Where the part begins; absent: at the beginning.
    offset: int
    #: The confinement asked for.
    sandbox: SandboxOrNull

class FsHashResult(TypedDict):
    """The answer to `fs/hash`."""
    #: The number of bytes hashed; less than requested if the file ends earlier.
    bytes: int
    #: The hash of those bytes.
    hash: FsContentHash
    #: The size of the whole file.
    size: int

#: The content that the writer expects: a content hash, or `absent` if the file must not exist.
FsIfMatch: TypeAlias = "str"

class _FsMetadata(TypedDict):
    #: 0 where the file system does not know.
    createdAtMs: int
    #: A directory.
    isDirectory: bool
    #: A regular file.
    isFile: bool
    #: The path itself is a symbolic link; the oldest dialect does not say.
    isSymlink: bool
    #: When the content changed last.
    modifiedAtMs: int
    #: In bytes; 0 in the oldest dialect.
    size: int


class FsMetadata(_FsMetadata, total=False):
    """The answer to `fs/getMetadata`: of the target where the path is a link."""
    #: The group's number.
    gid: int | None
    #: What it is.
    kind: FsMetadataKind | None
    #: Where the link points, when the path itself is one; bytes that are not UTF-8 are replaced.
    linkTarget: str | None
    #: Permission bits with set-user-id, set-group-id and sticky: 0 to 4095.
    mode: int | None
    #: The owner's number.
    uid: int | None

#: What a path names. Clients must accept words that are not listed.
FsMetadataKind: TypeAlias = "str"

class FsMissingChangedParams(TypedDict):
    """`fs/missingChanged`, from the server: look again; the watch has ended."""
    #: The watch.
    watchId: int

#: What a file is opened for.
FsOpenMode = Literal["read"] | Literal["replace"] | Literal["write"]

class _FsOpenParams(TypedDict):
    #: The client's name for the handle, at most 32 bytes; unique on the connection.
    handleId: str
    #: The file.
    path: HostPath


class FsOpenParams(_FsOpenParams, total=False):
    """`fs/open`: opens a regular file."""
    #: With `replace`: the old file stays whole until `fs/close`, which replaces it in one step.
    atomic: bool
    #: With which permissions a file is created that is not there: 0 to octal 777, less the umask; absent:
    #: 0666.
    createMode: int | None
    #: With `write`: only a file that belongs to the server's user alone (one name, closed to everybody else),
    #: and that nobody else has open like this.
    exclusive: bool
    #: What for.
    mode: FsOpenMode
    #: The confinement asked for.
    sandbox: SandboxOrNull

class FsOpenResult(TypedDict):
    """The answer to `fs/open`."""
    #: As in the request.
    handleId: str

class FsReadBlockParams(TypedDict):
    """`fs/readBlock`: reads a part of an open file."""
    #: The handle.
    handleId: str
    #: 1 to 1,048,576.
    len: int
    #: Where the block begins.
    offset: int

class FsReadBlockResult(TypedDict):
    """The answer to `fs/readBlock`."""
    #: The bytes read.
    chunk: Base64Bytes
    #: The read reached the end of the file.
    eof: bool

class _FsReadDirectoryParams(TypedDict):
    #: The directory.
    path: HostPath


class FsReadDirectoryParams(_FsReadDirectoryParams, total=False):
    """`fs/readDirectory`: what is in a directory."""
    #: `nextCursor` of the page before; absent: the first page.
    cursor: str | None
    #: With `limit`: adds the metadata of each entry.
    details: bool
    #: The most entries of one page, from 1 to the server's cap.
    limit: int | None
    #: The confinement asked for.
    sandbox: SandboxOrNull

class _FsReadDirectoryResult(TypedDict):
    #: What is in it, without `.` and `..`.
    entries: list[FsDirectoryEntry]


class FsReadDirectoryResult(_FsReadDirectoryResult, total=False):
    """The answer to `fs/readDirectory`."""
    #: The cursor of the next page; absent after the last one.
    nextCursor: str | None

class _FsReadFileParams(TypedDict):
    #: The file.
    path: HostPath


class FsReadFileParams(_FsReadFileParams, total=False):
    """`fs/readFile`: a whole regular file in one message."""
    #: False refuses symbolic links anywhere in the path.
    followSymlinks: bool | None
    #: The confinement asked for.
    sandbox: SandboxOrNull

class FsReadFileResult(TypedDict):
    """The answer to `fs/readFile`."""
    #: What is in it.
    dataBase64: Base64Bytes

class _FsReadLinkParams(TypedDict):
    #: The link.
    path: HostPath


class FsReadLinkParams(_FsReadLinkParams, total=False):
    """`fs/readLink`: where a symbolic link points, whether that exists or not."""
    #: The confinement asked for.
    sandbox: SandboxOrNull

class FsReadLinkResult(TypedDict):
    """The answer to `fs/readLink`."""
    #: For people: bytes that are not UTF-8 are replaced.
    target: str
    #: Exactly what the link says.
    targetBase64: Base64Bytes

class _FsRemoveParams(TypedDict):
    #: The path.
    path: HostPath


class FsRemoveParams(_FsRemoveParams, total=False):
    """`fs/remove`: a link itself is removed, never what it points to."""
    #: False refuses symbolic links anywhere in the path.
    followSymlinks: bool | None
    #: Ignores a missing path; true unless given.
    force: bool | None
    #: Removes directories with their contents; true unless given.
    recursive: bool | None
    #: The confinement asked for.
    sandbox: SandboxOrNull

class _FsRenameParams(TypedDict):
    #: To here.
    destinationPath: HostPath
    #: From here.
    sourcePath: HostPath


class FsRenameParams(_FsRenameParams, total=False):
    """`fs/rename`: moves within one file system, in one step. A link itself is moved."""
    #: False fails if the destination exists; true unless given.
    overwrite: bool | None
    #: The confinement asked for.
    sandbox: SandboxOrNull

#: What ended a `fs/search` early. Clients must accept words that are not listed.
FsSearchLimit: TypeAlias = "str"

class FsSearchOptions(TypedDict, total=False):
    """What a `fs/search` looks for, where, and how much it returns."""
    #: Lines to return after each match; at most 100.
    contextAfter: int
    #: Lines to return before each match; at most 100.
    contextBefore: int
    #: Only files whose paths below `path` match one of these globs, and none of those that begin with `!`.
    globs: list[str]
    #: Upper and lower case are the same in the pattern.
    ignoreCase: bool
    #: The pattern is plain text.
    literal: bool
    #: How much text and paths to return, in bytes; 1 to 1,048,576, absent: 262,144.
    maxBytes: int | None
    #: How many levels below `path` to search: 0 is its own files; absent: all.
    maxDepth: int | None
    #: How many matching lines, or files, to return; 1 to 10,000, absent: 500.
    maxItems: int | None
    #: How much of one line to return, in bytes; 1 to 65,536, absent: 1,024.
    maxLineBytes: int | None
    #: A regular expression of Rust, for one line; absent: every file is found.
    pattern: str | None
    #: What is returned of each file.
    report: FsSearchReport
    #: How many matching lines, or files, to skip, to continue a search.
    skip: int
    #: After how long to return what was found; up to 120,000, absent: 20,000.
    timeoutMs: int | None
    #: Also what `.gitignore` and `.ignore` files exclude, and directories of version control.
    withIgnored: bool

class _FsSearchParams(TypedDict):
    #: The directory, or a single file.
    path: HostPath


class FsSearchParams(_FsSearchParams, total=False):
    """`fs/search`: the lines of the files below a directory that match a regular expression, or the files
    themselves."""
    #: What to look for.
    options: FsSearchOptions
    #: The confinement asked for.
    sandbox: SandboxOrNull

#: What a `fs/search` returns of each file.
FsSearchReport = Literal["lines"] | Literal["counts"] | Literal["files"]

class _FsSearchResult(TypedDict):
    #: How many files were not searched because they are binary.
    binary: int
    #: The files with matches, depth first, each directory in the byte order of its names.
    files: list[FsFoundFile]
    #: How many files and directories were left out because of ignore files, or as directories of version
    #: control.
    ignored: int
    #: How many files were searched.
    searched: int


class FsSearchResult(_FsSearchResult, total=False):
    """The answer to `fs/search`."""
    #: The first of them.
    binaryFiles: list[HostPath]
    #: What could not be searched completely, at most 50.
    errors: list[FsWalkError]
    #: Which limit ended the search; absent: it is complete.
    truncated: FsSearchLimit | None

class _FsSetPermissionsParams(TypedDict):
    #: 0 to 4095, which is octal 7777.
    mode: int
    #: The path.
    path: HostPath


class FsSetPermissionsParams(_FsSetPermissionsParams, total=False):
    """`fs/setPermissions`: changes the permission bits of a file or directory."""
    #: False refuses symbolic links anywhere in the path.
    followSymlinks: bool | None
    #: The confinement asked for.
    sandbox: SandboxOrNull

class FsSetPermissionsResult(TypedDict, total=False):
    """What has become of the permission bits."""
    #: The bits of `mode` that were left out, because the credential has not the scope `files:setid`; absent:
    #: none.
    leftOut: int | None

class _FsSetTimesParams(TypedDict):
    #: The path.
    path: HostPath


class FsSetTimesParams(_FsSetTimesParams, total=False):
    """`fs/setTimes`: changes the times of a file or directory; at least one is needed."""
    #: The access time; absent: unchanged.
    accessedAtMs: int | None
    #: False refuses symbolic links anywhere in the path.
    followSymlinks: bool | None
    #: The modification time; absent: unchanged.
    modifiedAtMs: int | None
    #: The confinement asked for.
    sandbox: SandboxOrNull

class _FsSymlinkParams(TypedDict):
    #: The path of the link, which must not exist yet.
    path: HostPath


class FsSymlinkParams(_FsSymlinkParams, total=False):
    """`fs/symlink`: makes a symbolic link; exactly one of the two targets is needed."""
    #: The confinement asked for.
    sandbox: SandboxOrNull
    #: Where it points: a native path, relative ones start from the link.
    target: str | None
    #: The same as bytes, for names that are not UTF-8.
    targetBase64: Base64Bytes | None

class FsUnwatchParams(TypedDict):
    """`fs/unwatch`: ends a watch; an unknown watch is not an error."""
    #: The watch.
    watchId: int

class FsWalkEntry(TypedDict):
    """An entry found by a `fs/walk`."""
    #: What it is.
    kind: FsWalkKind
    #: Where it is.
    path: HostPath

class FsWalkError(TypedDict):
    """An entry that a `fs/walk` could not read or name."""
    #: Why.
    message: str
    #: Where; bytes that are not UTF-8 are replaced.
    path: HostPath

#: What a `FsWalkEntry` is. Clients must accept words that are not listed.
FsWalkKind: TypeAlias = "str"

class _FsWalkOptions(TypedDict):
    #: Lists and enters links to directories, each real directory once.
    followDirectorySymlinks: bool
    #: 0 lists the children of the root only; at most 64.
    maxDepth: int
    #: Directories read, the root included; 1 to 10,000.
    maxDirectories: int
    #: Entries looked at; 1 to 50,000.
    maxEntries: int


class FsWalkOptions(_FsWalkOptions, total=False):
    """How far a `fs/walk` goes."""
    #: Does not enter directories whose name begins with a dot.
    pruneHiddenDirectories: bool

class _FsWalkParams(TypedDict):
    #: How far to go.
    options: FsWalkOptions
    #: The directory; it is not listed itself.
    path: HostPath


class FsWalkParams(_FsWalkParams, total=False):
    """`fs/walk`: what is below a directory, breadth first, each directory sorted by name."""
    #: The confinement asked for.
    sandbox: SandboxOrNull

class FsWalkResult(TypedDict):
    """The answer to `fs/walk`."""
    #: Directories and regular files.
    entries: list[FsWalkEntry]
    #: Entries that could not be read or named.
    errors: list[FsWalkError]
    #: A limit was reached, so there is more.
    truncated: bool

class _FsWatchMissingParams(TypedDict):
    #: Paths that do not exist.
    missing: list[HostPath]
    #: The client's name for the watch.
    watchId: int


class FsWatchMissingParams(_FsWatchMissingParams, total=False):
    """`fs/watchMissing`: notifies once when one of the paths, or its first missing ancestor, appears."""
    #: A path that exists; changes of the path itself are reported too, but not changes of its contents.
    present: HostPath | None

class FsWatchMissingResult(TypedDict):
    """The answer to `fs/watchMissing`."""
    #: False if there is nothing to wait for, or if it cannot be watched; no notification follows.
    watching: bool

class _FsWatchParams(TypedDict):
    #: A file or directory that exists; links are resolved once, at the beginning.
    path: HostPath
    #: The client's name for the watch; unique among those of the connection.
    watchId: int


class FsWatchParams(_FsWatchParams, total=False):
    """`fs/watch`: reports changes of a path and everything below it, until `fs/unwatch`."""
    #: With everything below it; true unless given.
    recursive: bool | None
    #: The confinement asked for.
    sandbox: SandboxOrNull

class FsWriteBlockParams(TypedDict):
    """`fs/writeBlock`: writes a part of an open file; skipped ranges read as zeros."""
    #: 1 to 1,048,576 bytes.
    chunk: Base64Bytes
    #: The handle.
    handleId: str
    #: Where the block begins.
    offset: int

class _FsWriteFileParams(TypedDict):
    #: What is to be in it.
    dataBase64: Base64Text
    #: The file.
    path: HostPath


class FsWriteFileParams(_FsWriteFileParams, total=False):
    """`fs/writeFile`: replaces the content of a file, or creates it."""
    #: Writes a new file beside the old one and replaces it in one step; mode and owner are kept.
    atomic: bool
    #: With which permissions a file is created that is not there: 0 to octal 777, less the umask; absent:
    #: 0666.
    createMode: int | None
    #: False refuses symbolic links anywhere in the path.
    followSymlinks: bool | None
    #: The expected current content; if it differs, the write fails and changes nothing.
    ifMatch: FsIfMatch | None
    #: The confinement asked for.
    sandbox: SandboxOrNull

class FsWriteFileResult(TypedDict, total=False):
    """The answer to `fs/writeFile`."""
    #: With `ifMatch`: the hash of the new content, for the next write.
    hash: FsContentHash | None

#: A `file:` URI, or an absolute path, which is used verbatim; always a URI in results.
HostPath: TypeAlias = "str"

#: What to do with a redirect.
HttpRedirectPolicy = Literal["follow"] | Literal["stop"]

class HttpRequestBodyDeltaParams(TypedDict):
    """`http/request/bodyDelta`, from the server: the next part of a streamed body."""
    #: At most 1 MiB, and 64 KiB from this server; empty in the last.
    deltaBase64: Base64Bytes
    #: This is the last.
    done: bool
    #: Why the body is not complete, in the last.
    error: str | None
    #: The request.
    requestId: str
    #: 1, 2, 3 and so on.
    seq: int

class _HttpRequestHeader(TypedDict):
    #: Its name.
    name: str
    #: Its value, or the beginning of it.
    value: str


class HttpRequestHeader(_HttpRequestHeader, total=False):
    """One header of a request. `Debug` hides its value, which is often a secret."""
    #: A variable of the server's environment whose value is put behind `value`.
    valueEnvVar: str | None

class _HttpRequestParams(TypedDict):
    #: Sent as given.
    method: str
    #: Names the stream of the body; unique among the streams of the connection.
    requestId: str
    #: `http` or `https`; a fragment is not sent.
    url: str


class HttpRequestParams(_HttpRequestParams, total=False):
    """`http/request`."""
    #: The body.
    bodyBase64: Base64Bytes | None
    #: Order and repeats are kept.
    headers: list[HttpRequestHeader]
    #: What to do with a redirect.
    redirectPolicy: HttpRedirectPolicy
    #: Sends the body after the answer in `http/request/bodyDelta`s.
    streamResponse: bool
    #: For the whole exchange; absent: no limit. 0 fails at once.
    timeoutMs: int | None

class HttpRequestResult(TypedDict):
    """The answer to `http/request`, for any status."""
    #: The body as received, not decompressed; empty if it is streamed.
    bodyBase64: Base64Bytes
    #: Names in lower case; values that are not visible ASCII are left out.
    headers: list[HttpResponseHeader]
    #: The status code.
    status: int

class HttpResponseHeader(TypedDict):
    """One header of a response."""
    #: In lower case.
    name: str
    #: Its value.
    value: str

class InitializeCapabilities(TypedDict):
    """The capabilities enabled on a connection, and those the server supports."""
    #: Supported by the server.
    available: list[InitializeCapability]
    #: Requested and enabled.
    enabled: list[InitializeCapability]

#: Something beyond the base dialect that a client must ask for. Clients must accept words that are not
#: listed.
InitializeCapability: TypeAlias = "str"

class InitializeLimits(TypedDict):
    """What a server allows one client; 0 means that the server did not say."""
    #: Open file handles of one connection.
    handles: int
    #: Length of one message, in bytes.
    messageBytes: int
    #: Unanswered requests before the server stops reading.
    pendingRequests: int
    #: Processes of one session.
    processes: int
    #: The most that `output.retainBytes` of a start can ask for.
    retainBytes: int

class _InitializeParams(TypedDict):
    #: What the client calls itself; may be empty.
    clientName: str


class InitializeParams(_InitializeParams, total=False):
    """`initialize`, the first request of every connection."""
    #: What the client wants beyond the base dialect; unknown words are ignored.
    capabilities: list[InitializeCapability] | None
    #: How long the session may live without a connection, up to the server's cap.
    detachTtlMs: int | None
    #: The session to continue, null for a new one.
    resumeSessionId: str | None
    #: A name that people can use instead of the id; unique among the identity's sessions.
    sessionName: str | None
    #: With `resumeSessionId`: detach the current controller instead of failing.
    takeover: bool | None

class _InitializeResult(TypedDict):
    #: What is on for this connection, and what the server can do at all.
    capabilities: InitializeCapabilities
    #: How long the session lives without a connection; null until the server ends.
    detachTtlMs: int | None
    #: What the server allows.
    limits: InitializeLimits
    #: `exec-server.v0`.
    protocolVersion: str
    #: Whether an existing session was attached.
    resumed: bool
    #: Which program answers.
    server: InitializeServer
    #: Resumes this session after a disconnect; empty on a server without sessions.
    sessionId: str


class InitializeResult(_InitializeResult, total=False):
    """The answer to `initialize`."""
    #: What the host is; the same as `environment/info` answers.
    environmentInfo: EnvironmentInfo | None

class InitializeServer(TypedDict):
    """The server program."""
    #: `remex` for this one.
    name: str
    #: Its version.
    version: str

#: `initialized`: the client has seen the answer to `initialize`. It may repeat.
InitializedParams: TypeAlias = "dict[str, Any]"

#: Whether a process may reach a host.
NetworkDecision: TypeAlias = "dict[str, Any]"

class _NetworkPolicyDecisionParams(TypedDict):
    #: `allow`, `deny` or `ask`.
    decision: str
    #: The host.
    host: str
    #: Whether the client has allowed what no rule allows.
    policyOverride: bool
    #: The TCP port.
    port: int
    #: The process.
    processId: str
    #: How the process asked for the host.
    protocol: NetworkProtocol
    #: Why; `allowed` for what may be reached.
    reason: str
    #: What the decision is about: `domain` for the host, `non_domain` for the way in which it was asked for.
    scope: str
    #: What has decided: `baseline_policy` for the rules of the start, `mode_guard` for its mode, `decider`
    #: for the client.
    source: str
    #: When, in RFC 3339.
    timestamp: str


class NetworkPolicyDecisionParams(_NetworkPolicyDecisionParams, total=False):
    """`network/policyDecision`: the server tells what was decided about a host that a process asked for."""
    #: Who asked, if that is known.
    client: str | None
    #: The method of an HTTP request.
    method: str | None

class NetworkPolicyRequestParams(TypedDict):
    """`network/policyRequest`: the server asks whether a process may reach a host that no rule allows or
    denies."""
    #: The process.
    processId: str
    #: What it wants to reach.
    request: NetworkTarget

class NetworkPolicyRequestResult(TypedDict):
    """The answer to `network/policyRequest`."""
    #: What the client has decided.
    decision: NetworkDecision

#: How a process asks for a host. Clients must accept words that are not listed.
NetworkProtocol: TypeAlias = "str"

class NetworkTarget(TypedDict):
    """What a process wants to reach."""
    #: A name, or an address without brackets; 1 to 253 bytes without blanks and control characters.
    host: str
    #: The TCP port.
    port: int
    #: How it asked for it.
    protocol: NetworkProtocol

class _ProcessChunk(TypedDict):
    #: Raw bytes; characters and lines may be split.
    chunk: Base64Bytes
    #: The number of the event in its process, from 1.
    seq: int
    #: Where it came from.
    stream: ProcessStream


class ProcessChunk(_ProcessChunk, total=False):
    """One piece of output in a `ProcessReadResult`."""
    #: When it was read, in milliseconds since the Unix epoch.
    atMs: int | None

class _ProcessCloseStdinParams(TypedDict):
    #: The process.
    processId: str


class ProcessCloseStdinParams(_ProcessCloseStdinParams, total=False):
    """`process/closeStdin`: end of file after everything accepted before. Idempotent."""
    #: The start that is meant, as its answer named it: if the process was restarted since, the request fails
    #: and does nothing. Absent: whichever runs now.
    incarnation: int | None
    #: Another session of the same identity.
    sessionId: str | None

class _ProcessClosedParams(TypedDict):
    #: How much of that was evicted unread; absent in the base dialect.
    evictedBytes: int | None
    #: The process.
    processId: str
    #: All output that the process produced; absent in the base dialect.
    produced: ProcessProduced | None
    #: The last number.
    seq: int


class ProcessClosedParams(_ProcessClosedParams, total=False):
    """`process/closed`: the last event; the process has exited, and all output has been sent."""
    #: The start that it belongs to, if the process may be restarted: what follows a restart belongs to
    #: another.
    incarnation: int | None
    #: The observed session it belongs to.
    sessionId: str | None

class ProcessCollectParams(TypedDict, total=False):
    """`process/collect`: forgets closed durable processes, the one that ended first before the others."""
    #: Whether only to say what would be forgotten.
    dryRun: bool
    #: As many as it takes until the logs of the others need at most this much disk space.
    keepBytes: int | None
    #: Only those that ended at least this long ago.
    olderThanMs: int | None
    #: Whose processes; absent: the session's.
    scope: ProcessScope

class ProcessCollectResult(TypedDict):
    """The answer to `process/collect`."""
    #: The disk space of their logs.
    bytes: int
    #: How many in all.
    count: int
    #: The disk space of their logs.
    keptBytes: int
    #: How many closed durable processes are left.
    keptCount: int
    #: What was forgotten, or would be: the ones that ended first, at most 256.
    processes: list[ProcessCollectedEntry]

class _ProcessCollectedEntry(TypedDict):
    #: The disk space of its log.
    bytes: int
    #: When it ended, in milliseconds since the Unix epoch.
    endedAtMs: int
    #: The client's handle.
    processId: str
    #: The session it belongs to.
    sessionId: str


class ProcessCollectedEntry(_ProcessCollectedEntry, total=False):
    """One process in a `ProcessCollectResult`."""
    #: Whose session that is; only with the scope `all`.
    identity: str | None

class ProcessDeniedHost(TypedDict):
    """A host that a confined process asked for and did not reach, because its sandbox does not list it."""
    #: How often it was refused.
    count: int
    #: The name or address.
    host: str
    #: The port.
    port: int

class _ProcessEntry(TypedDict):
    #: The program and its arguments.
    argv: list[str]
    #: Why it ended.
    cause: ProcessExitCause | None
    #: CPU time of the tree; null when the system does not tell.
    cpuMs: int | None
    #: Where it was started.
    cwd: HostPath
    #: When it exited; null until then.
    endedAtMs: int | None
    #: Null until it has exited.
    exitCode: int | None
    #: As given at the start.
    labels: dict[str, str]
    #: The living processes of the tree, the smallest numbers first, at most 64.
    livingPids: list[int]
    #: The process id of the operating system; null before it is known.
    pid: int | None
    #: The client's handle.
    processId: str
    #: Its output so far.
    produced: ProcessProduced
    #: Resident memory of the tree; null when the system does not tell.
    residentBytes: int | None
    #: How much the server keeps: what can still be read, and the beginning for snapshots.
    retainedBytes: int
    #: The session it belongs to.
    sessionId: str
    #: The signal that ended it, such as `SIGKILL`.
    signal: str | None
    #: In milliseconds since the Unix epoch.
    startedAtMs: int
    #: How far it has come.
    state: ProcessState
    #: Whether it has a terminal.
    tty: bool


class ProcessEntry(_ProcessEntry, total=False):
    """One process in a `ProcessListResult`."""
    #: Whether it outlives the server.
    durable: bool
    #: Whose session that is; only in a listing with the scope `all`.
    identity: str | None
    #: Tells this start of the process from all others under its id, before and after a restart; absent from
    #: servers that cannot tell, and for a process that one of them has started.
    incarnation: int | None
    #: The user as whom it runs, as given at the start; absent: that of the server.
    user: str | None

#: Where an `ProcessEnvPolicy` starts.
ProcessEnvInherit = Literal["all"] | Literal["core"] | Literal["none"]

class ProcessEnvPolicy(TypedDict):
    """What a child inherits of the server's environment."""
    #: Patterns of names to drop.
    exclude: list[str]
    #: Keeps names with `KEY`, `SECRET` or `TOKEN` in them.
    ignoreDefaultExcludes: bool
    #: Patterns of names to keep; empty: all.
    includeOnly: list[str]
    #: Where to start.
    inherit: ProcessEnvInherit
    #: Variables to add after that.
    set: dict[str, str]

#: Why a process ended. Clients must accept words that are not listed.
ProcessExitCause: TypeAlias = "str"

class _ProcessExitedParams(TypedDict):
    #: Why it ended; absent in the base dialect.
    cause: ProcessExitCause | None
    #: The exit status, or 128 + signal number.
    exitCode: int
    #: The process.
    processId: str
    #: A hint that a failure was caused by the sandbox.
    sandboxDenied: bool
    #: Follows the last output before the exit.
    seq: int
    #: The signal that ended it, such as `SIGKILL`.
    signal: str | None
    #: Resources it used; absent in the base dialect.
    usage: ProcessUsage | None


class ProcessExitedParams(_ProcessExitedParams, total=False):
    """`process/exited`: the process itself has ended; its earlier output has been sent."""
    #: The start that it belongs to, if the process may be restarted: what follows a restart belongs to
    #: another.
    incarnation: int | None
    #: The hosts that the sandbox has refused by then.
    networkDenied: list[ProcessDeniedHost]
    #: The observed session it belongs to.
    sessionId: str | None

class _ProcessFailedParams(TypedDict):
    #: What kind of failure, as in errors.
    kind: RpcErrorKind
    #: What failed, why, and what to do.
    message: str
    #: The process.
    processId: str


class ProcessFailedParams(_ProcessFailedParams, total=False):
    """`process/failed`, for clients with the capability `processFailed`."""
    #: The observed session it belongs to.
    sessionId: str | None

class _ProcessForgetParams(TypedDict):
    #: The process.
    processId: str


class ProcessForgetParams(_ProcessForgetParams, total=False):
    """`process/forget`: a process that has closed is forgotten now, with its output; its id is free."""
    #: The start that is meant, as its answer named it: if the process was restarted since, the request fails
    #: and does nothing. Absent: whichever runs now.
    incarnation: int | None
    #: The session it is in; the connection's own if absent.
    sessionId: str | None

#: Why a reader will never receive some events. Clients must accept words that are not listed.
ProcessGapCause: TypeAlias = "str"

class _ProcessGapParams(TypedDict):
    #: Output bytes in them; null for a reader so far behind that the server no longer knows its offset.
    bytes: int | None
    #: The first event that is missing.
    fromSeq: int
    #: The process.
    processId: str
    #: The last event that is missing.
    toSeq: int


class ProcessGapParams(_ProcessGapParams, total=False):
    """`process/gap`, for clients with the capability `processGap`: output that was evicted before this
    reader got it."""
    #: Why they are missing; null means that they were evicted.
    cause: ProcessGapCause | None
    #: The start that it belongs to, if the process may be restarted: what follows a restart belongs to
    #: another.
    incarnation: int | None
    #: The observed session it belongs to.
    sessionId: str | None

class _ProcessGapRange(TypedDict):
    #: Output bytes in them; null for a reader so far behind that the server no longer knows its offset.
    bytes: int | None
    #: The first event that is missing.
    fromSeq: int
    #: The last event that is missing.
    toSeq: int


class ProcessGapRange(_ProcessGapRange, total=False):
    """A range of events that a reader will never receive."""
    #: Why they are missing; null means that they were evicted.
    cause: ProcessGapCause | None

class ProcessListParams(TypedDict, total=False):
    """`process/list`: lists processes."""
    #: Whose processes; absent: the session's.
    scope: ProcessScope
    #: Another session of the same identity.
    sessionId: str | None

class ProcessListResult(TypedDict):
    """The answer to `process/list`."""
    #: Running processes, and ended ones that are still remembered.
    processes: list[ProcessEntry]

class ProcessOutputOptions(TypedDict, total=False):
    """How the output of one process is kept; absent members mean the base's 1 MiB, 80 s and pause."""
    #: What a full log does while a client is attached.
    overflow: ProcessOverflow
    #: How much stays readable, up to the server's cap.
    retainBytes: int | None
    #: How long it stays readable after `closed`.
    retainMs: int | None

class _ProcessOutputParams(TypedDict):
    #: Raw bytes; characters and lines may be split.
    chunk: Base64Bytes
    #: The process.
    processId: str
    #: From 1 and without gap over output, exit and close.
    seq: int
    #: Where it came from.
    stream: ProcessStream


class ProcessOutputParams(_ProcessOutputParams, total=False):
    """`process/output`: the next output of a process."""
    #: The start that it belongs to, if the process may be restarted: what follows a restart belongs to
    #: another.
    incarnation: int | None
    #: The observed session it belongs to.
    sessionId: str | None

#: What happens when output arrives that an attached client has not made room for.
ProcessOverflow = Literal["pause"] | Literal["evict"] | Literal["hold"]

class ProcessProduced(TypedDict):
    """Bytes per stream."""
    #: On the terminal.
    pty: int
    #: On standard error.
    stderr: int
    #: On standard output.
    stdout: int

class _ProcessReadParams(TypedDict):
    #: The process.
    processId: str


class ProcessReadParams(_ProcessReadParams, total=False):
    """`process/read`: output that is retained, or a wait for more. Reading consumes nothing."""
    #: Exclusive; absent: 0, from the oldest.
    afterSeq: int | None
    #: The start that is meant, as its answer named it: if the process was restarted since, the request fails
    #: and does nothing. Absent: whichever runs now.
    incarnation: int | None
    #: Decoded bytes; at most, and by default, 16 MiB. At least one chunk is returned if there is one.
    maxBytes: int | None
    #: Another session of the same identity.
    sessionId: str | None
    #: How long to wait for new events; absent: 0.
    waitMs: int | None

class _ProcessReadResult(TypedDict):
    #: In order, each with a seq beyond `afterSeq`.
    chunks: list[ProcessChunk]
    #: Whether the process is closed: no more events will follow. The oldest dialect does not say.
    closed: bool
    #: Null until it has exited.
    exitCode: int | None
    #: Whether the process has exited by now, wherever the cursor is.
    exited: bool
    #: Why the server could not follow the process to its end, or why output of a process with `sync` may not
    #: survive a power failure; null otherwise.
    failure: str | None
    #: One past what this answer covers.
    nextSeq: int
    #: A hint that a failure was caused by the sandbox.
    sandboxDenied: bool


class ProcessReadResult(_ProcessReadResult, total=False):
    """The answer to `process/read`. `afterSeq = nextSeq - 1` is a lossless cursor."""
    #: Once it has exited, why.
    cause: ProcessExitCause | None
    #: Once it is closed, how much of that was dropped before the session's client got it.
    evictedBytes: int | None
    #: What was evicted between the cursor and the first chunk.
    gap: ProcessGapRange | None
    #: Tells this start of the process from all others under its id, before and after a restart; absent from
    #: servers that cannot tell, and for a process that one of them has started.
    incarnation: int | None
    #: The hosts that the sandbox has refused so far.
    networkDenied: list[ProcessDeniedHost]
    #: Once it is closed, all output that it produced.
    produced: ProcessProduced | None
    #: Once it has exited, the signal that ended it, such as `SIGKILL`.
    signal: str | None
    #: Once it has exited, what it used.
    usage: ProcessUsage | None

class _ProcessReleaseParams(TypedDict):
    #: The process.
    processId: str


class ProcessReleaseParams(_ProcessReleaseParams, total=False):
    """`process/release`: no longer holds output for the controlling client while it is disconnected, until
    it reconnects. Idempotent."""
    #: How long its session lives from now on without a connection, if it has none and would end sooner; at
    #: most as long as the server allows. Absent: as before.
    detachTtlMs: int | None
    #: The start that is meant, as its answer named it: if the process was restarted since, the request fails
    #: and does nothing. Absent: whichever runs now.
    incarnation: int | None
    #: The session it is in; the connection's own if absent.
    sessionId: str | None

class _ProcessResizeParams(TypedDict):
    #: Width in characters.
    cols: int
    #: The process.
    processId: str
    #: Height in characters.
    rows: int


class ProcessResizeParams(_ProcessResizeParams, total=False):
    """`process/resize`: the size of the terminal; a pipe process has none."""
    #: The start that is meant, as its answer named it: if the process was restarted since, the request fails
    #: and does nothing. Absent: whichever runs now.
    incarnation: int | None
    #: Another session of the same identity.
    sessionId: str | None

class ProcessResourceLimits(TypedDict, total=False):
    """Resource limits of a process; an absent member means no limit beyond those of the host."""
    #: CPU time of each process in seconds; then SIGXCPU, and SIGKILL a second later.
    cpuSeconds: int | None
    #: The size of each file that they write.
    fileBytes: int | None
    #: Memory of the process and its descendants together (cgroup), or address space of each of them (rlimit).
    memoryBytes: int | None
    #: Open files of each process.
    openFiles: int | None
    #: Processes and threads: of the process and its descendants together (cgroup), or of the whole user
    #: (rlimit).
    processes: int | None

class _ProcessRestart(TypedDict):
    #: After which ends.
    policy: ProcessRestartPolicy


class ProcessRestart(_ProcessRestart, total=False):
    """When a program is run again after it has ended."""
    #: How often at most; absent: without end.
    maxRestarts: int | None

class _ProcessRestartParams(TypedDict):
    #: The process; it may have ended already.
    processId: str


class ProcessRestartParams(_ProcessRestartParams, total=False):
    """`process/restart`: ends the process and its whole tree, and starts it again under its id, as it was
    started."""
    #: How long its tree may take to end after SIGTERM; absent: it is killed at once.
    graceMs: int | None
    #: The start that is meant, as its answer named it: if the process was restarted since, the request fails
    #: and does nothing. Absent: whichever runs now.
    incarnation: int | None
    #: Makes the restart idempotent: repeating it with the same id returns the first outcome. It is the
    #: `startId` of the new start.
    restartId: str | None
    #: Another session of the same identity, to which no client is attached.
    sessionId: str | None

#: After which ends a program is run again.
ProcessRestartPolicy = Literal["onFailure"] | Literal["always"]

#: How a started process is confined. Clients must accept words that are not listed.
ProcessSandboxType: TypeAlias = "str"

#: Whose processes are listed.
ProcessScope = Literal["session"] | Literal["identity"] | Literal["all"]

class _ProcessSeekParams(TypedDict):
    #: The process.
    processId: str
    #: Which position.
    to: ProcessSeekPosition


class ProcessSeekParams(_ProcessSeekParams, total=False):
    """`process/seek`: finds a position in the output, to read from there without reading what precedes it."""
    #: The start that is meant, as its answer named it: if the process was restarted since, the request fails
    #: and does nothing. Absent: whichever runs now.
    incarnation: int | None
    #: Another session of the same identity.
    sessionId: str | None

#: A position in the output of a process.
ProcessSeekPosition: TypeAlias = "dict[str, Any]"

class ProcessSeekResult(TypedDict):
    """The answer to `process/seek`."""
    #: The `afterSeq` of a read from there; 0 if that output is evicted, or may be, so that the read reports
    #: the gap.
    afterSeq: int
    #: The newest event.
    newestSeq: int
    #: Bytes of output before that position; null if the server no longer knows.
    offset: int | None
    #: Bytes of output so far.
    producedBytes: int

class ProcessShellSnapshot(TypedDict):
    """What the profile files of a login shell set up; captured once, for a command `[shell.path, "-lc",
    COMMAND, …]`."""
    #: Starts with the same scope share a snapshot, 1 to 256 bytes.
    scopeId: str
    #: The shell: `bash`, `zsh` or `sh`.
    shell: EnvironmentShell

#: `interrupt`, or a POSIX signal name, with or without `SIG`.
ProcessSignalName = Literal["interrupt", "ABRT", "SIGABRT", "ALRM", "SIGALRM", "BUS", "SIGBUS", "CHLD", "SIGCHLD", "CONT", "SIGCONT", "FPE", "SIGFPE", "HUP", "SIGHUP", "ILL", "SIGILL", "INT", "SIGINT", "IO", "SIGIO", "KILL", "SIGKILL", "PIPE", "SIGPIPE", "POLL", "SIGPOLL", "PROF", "SIGPROF", "QUIT", "SIGQUIT", "SEGV", "SIGSEGV", "STOP", "SIGSTOP", "SYS", "SIGSYS", "TERM", "SIGTERM", "TRAP", "SIGTRAP", "TSTP", "SIGTSTP", "TTIN", "SIGTTIN", "TTOU", "SIGTTOU", "URG", "SIGURG", "USR1", "SIGUSR1", "USR2", "SIGUSR2", "VTALRM", "SIGVTALRM", "WINCH", "SIGWINCH", "XCPU", "SIGXCPU", "XFSZ", "SIGXFSZ"]

class _ProcessSignalParams(TypedDict):
    #: The process.
    processId: str
    #: `interrupt`, or a POSIX name with or without `SIG`.
    signal: ProcessSignalName


class ProcessSignalParams(_ProcessSignalParams, total=False):
    """`process/signal`: a signal for the process group of the child."""
    #: The start that is meant, as its answer named it: if the process was restarted since, the request fails
    #: and does nothing. Absent: whichever runs now.
    incarnation: int | None
    #: Another session of the same identity.
    sessionId: str | None

class _ProcessSnapshotParams(TypedDict):
    #: The process.
    processId: str


class ProcessSnapshotParams(_ProcessSnapshotParams, total=False):
    """`process/snapshot`: the retained output in one piece."""
    #: The start that is meant, as its answer named it: if the process was restarted since, the request fails
    #: and does nothing. Absent: whichever runs now.
    incarnation: int | None
    #: Over all streams; at most, and by default, 16 MiB.
    maxBytes: int | None
    #: Another session of the same identity.
    sessionId: str | None

class ProcessSnapshotResult(TypedDict):
    """The answer to `process/snapshot`: head and tail are kept, the middle is dropped and counted."""
    #: Null until the process has exited.
    exitCode: int | None
    #: How much is missing.
    omittedBytes: int
    #: Whether it has not exited.
    running: bool
    #: Empty for a terminal.
    stderr: Base64Bytes
    #: Empty for a terminal.
    stdout: Base64Bytes
    #: Empty for pipes.
    terminal: Base64Bytes
    #: Whether output is missing.
    truncated: bool

class _ProcessStartParams(TypedDict):
    #: The program and its arguments; a program without a slash is searched in the `PATH` of `env`.
    argv: list[str]
    #: The whole environment, or overrides of `envPolicy`.
    env: dict[str, str]
    #: The client's handle on the process, any string; unique within the session.
    processId: str
    #: A terminal instead of pipes.
    tty: bool


class ProcessStartParams(_ProcessStartParams, total=False):
    """`process/start`: runs a program."""
    #: What the program sees as its own name instead of `argv[0]`.
    arg0: str | None
    #: The same as bytes, for words that are not UTF-8; if present, it replaces `argv`.
    argvBase64: list[Base64Bytes] | None
    #: Width of the terminal, 80 unless given.
    cols: int | None
    #: The working directory; may be absent only with `user`, and is then the home of that account.
    cwd: HostPath
    #: Whether the process outlives the server, with its output and exit; null means if the server can keep
    #: it.
    durable: bool | None
    #: Asks to reach the network only as `networkProxy` says, if the sandbox leaves the network open.
    enforceManagedNetwork: bool
    #: What the child inherits of the server's environment; absent: nothing.
    envPolicy: ProcessEnvPolicy | None
    #: Time without output after which the process is ended.
    idleTimeoutMs: int | None
    #: Gives the process and its descendants a pid namespace of their own, so that ending it leaves none of
    #: them behind. With a sandbox that confines anything it has one anyway.
    isolatePids: bool
    #: Words for people and tools; `process/list` shows them.
    labels: dict[str, str]
    #: Resource limits; what cannot be enforced is refused.
    limits: ProcessResourceLimits
    #: After exit, how long to wait for a background child that holds the output open; absent: until end of
    #: file.
    lingerMs: int | None
    #: A proxy that runs on the client's side; this server cannot use it.
    managedNetwork: Any
    #: What `enforceManagedNetwork` is about; decoded only then.
    networkProxy: Any
    #: How its output is kept.
    output: ProcessOutputOptions
    #: Keeps stdin of a pipe process writable; otherwise it is `/dev/null`.
    pipeStdin: bool
    #: Runs the program again when it ends; only where `processRestart` is among the `capabilities` of the
    #: environment.
    restart: ProcessRestart | None
    #: Keeps this request in memory for `process/restart`; only where `processRestartRequest` is among the
    #: `capabilities` of the environment.
    restartable: bool
    #: Height of the terminal, 24 unless given.
    rows: int | None
    #: The confinement asked for.
    sandbox: SandboxOrNull
    #: Restores what the profile files of a login shell set up, instead of running them again.
    shellSnapshot: ProcessShellSnapshot | None
    #: Makes the start idempotent: repeating it with the same id returns the first outcome and starts nothing.
    startId: str | None
    #: Whether its output, of a durable process, is on the disk before clients see it, so that it survives a
    #: power failure.
    sync: bool
    #: How long the tree may take to end after SIGTERM when one of these times has passed; absent: it is
    #: killed at once.
    timeoutGraceMs: int | None
    #: Wall-clock time after which the process is ended.
    timeoutMs: int | None
    #: The user of the host as whom it runs, by the name of the account or its uid in decimal digits; only
    #: where `processUser` is among the `capabilities` of the environment.
    user: str | None

class _ProcessStartResult(TypedDict):
    #: The process id of the operating system.
    pid: int | None
    #: As in the request.
    processId: str
    #: Whether this is the outcome of an earlier start with the same `startId`.
    replayed: bool
    #: How the process is confined.
    sandboxType: ProcessSandboxType
    #: In milliseconds since the Unix epoch.
    startedAtMs: int | None


class ProcessStartResult(_ProcessStartResult, total=False):
    """The answer to `process/start`."""
    #: Tells this start of the process from all others under its id, before and after a restart; absent from
    #: servers that cannot tell, and for a process that one of them has started.
    incarnation: int | None

class _ProcessStartedParams(TypedDict):
    #: The process id of the operating system.
    pid: int
    #: The process.
    processId: str


class ProcessStartedParams(_ProcessStartedParams, total=False):
    """`process/started`, for clients with the capability `processStarted`."""
    #: The observed session it belongs to.
    sessionId: str | None

#: How far a process has come. Clients must accept words that are not listed.
ProcessState: TypeAlias = "str"

#: Where output comes from. Clients must accept words that are not listed.
ProcessStream: TypeAlias = "str"

#: How a process is ended.
ProcessTerminateMode = Literal["force"] | dict[str, Any]

class _ProcessTerminateParams(TypedDict):
    #: The process.
    processId: str


class ProcessTerminateParams(_ProcessTerminateParams, total=False):
    """`process/terminate`: ends the process and its whole tree. An unknown or ended process is not an error."""
    #: The start that is meant, as its answer named it: if the process was restarted since, the request fails
    #: and does nothing. Absent: whichever runs now.
    incarnation: int | None
    #: How to end it; absent: `SIGKILL` at once.
    mode: ProcessTerminateMode
    #: Which of its descendants to end; absent: depends on its state.
    scope: ProcessTerminateScope
    #: Another session of the same identity.
    sessionId: str | None

class ProcessTerminateResult(TypedDict):
    """The answer to `process/terminate`."""
    #: Whether the process was still running when the request arrived.
    running: bool

#: How much of a process is ended.
ProcessTerminateScope = Literal["usual"] | Literal["tree"]

class ProcessUsage(TypedDict):
    """Resources used by a process."""
    #: Null if the kernel reports the server's own peak instead.
    maxRssBytes: int | None
    #: CPU time in the kernel.
    systemMs: int
    #: CPU time in its own code.
    userMs: int
    #: From start to exit.
    wallMs: int

#: What a `process/wait` waits for.
ProcessWaitCondition = Literal["exit"] | Literal["closed"] | dict[str, Any]

class _ProcessWaitParams(TypedDict):
    #: The process.
    processId: str


class ProcessWaitParams(_ProcessWaitParams, total=False):
    """`process/wait`: waits for a condition; returns at once if it already holds."""
    #: The start that is meant, as its answer named it: if the process was restarted since, the request fails
    #: and does nothing. Absent: whichever runs now.
    incarnation: int | None
    #: Another session of the same identity.
    sessionId: str | None
    #: What to wait for; absent: the exit.
    until: ProcessWaitCondition
    #: How long to wait; absent: without limit.
    waitMs: int | None

#: Why a wait is over. Clients must accept words that are not listed.
ProcessWaitReason: TypeAlias = "str"

class ProcessWaitResult(TypedDict):
    """The answer to `process/wait`; what is not known is null."""
    #: Why it ended.
    cause: ProcessExitCause | None
    #: Null until the process has exited.
    exitCode: int | None
    #: The bytes that matched.
    match: Base64Bytes | None
    #: Why the wait is over.
    reason: ProcessWaitReason
    #: The event that ended it, or the newest one.
    seq: int | None
    #: The signal that ended it, such as `SIGKILL`.
    signal: str | None

class _ProcessWriteParams(TypedDict):
    #: What to write; may be empty.
    chunk: Base64Bytes
    #: The process.
    processId: str


class ProcessWriteParams(_ProcessWriteParams, total=False):
    """`process/write`: bytes for stdin, delivered in the order of the requests."""
    #: The start that is meant, as its answer named it: if the process was restarted since, the request fails
    #: and does nothing. Absent: whichever runs now.
    incarnation: int | None
    #: Another session of the same identity.
    sessionId: str | None
    #: Makes the write idempotent: an accepted id is never written twice. Never empty; clients of v0 send
    #: none.
    writeId: str | None

class ProcessWriteResult(TypedDict):
    """The answer to `process/write`, in the words of two dialects."""
    #: The same for clients of v0: whether `status` is `accepted`.
    accepted: bool
    #: What became of the bytes; in the oldest dialect only `accepted` says it.
    status: ProcessWriteStatus

#: What became of the bytes of a `process/write`. Clients must accept words that are not listed.
ProcessWriteStatus: TypeAlias = "str"

class RequestCancelParams(TypedDict):
    """`request/cancel`, a notification for clients with the capability `cancel`: the request ends with an
    error; nothing is undone."""
    #: The id of the request, with the type it was sent with.
    id: RpcRequestId

#: The empty answer `{}`.
RpcEmptyResult: TypeAlias = "dict[str, Any]"

class _RpcError(TypedDict):
    code: int
    message: str


class RpcError(_RpcError, total=False):
    """The shape of an error on the wire."""
    #: Omitted when empty.
    data: RpcErrorData | None

class RpcErrorData(TypedDict, total=False):
    cwd: str | None
    hint: str | None
    kind: RpcErrorKind | None
    program: str | None
    restarted: bool

#: The kind of error: a stable word for programs. Clients must accept words that are not listed.
RpcErrorKind: TypeAlias = "str"

#: The id that matches an answer to its request; echoed with its original type.
RpcRequestId: TypeAlias = "int | str"

#: The access to a path.
SandboxAccess = Literal["read"] | Literal["write"] | Literal["deny"]

class _SandboxContext(TypedDict):
    #: What is allowed.
    permissions: SandboxPermissions
    #: Of no meaning here, but clients must send it.
    windowsSandboxLevel: str


class SandboxContext(_SandboxContext, total=False):
    """Everything a client says about confinement."""
    #: What relative permissions start from.
    cwd: HostPath | None
    #: The hosts that a process reaches through the server's proxy, and nothing else of the network, whatever
    #: `network` says. An extension.
    hosts: SandboxHosts | None
    #: Replaces `cwd` and `workspaceRoots` where permissions are concerned; file requests have it.
    policyContext: SandboxPolicyContext | None
    #: Whether a `write` entry for a path that does not exist is an error, and does not just grant nothing. An
    #: extension.
    refuseMissingWrites: bool | None
    #: What `tmpdir` stands for in requests that have no environment variables.
    temporaryDirectories: list[HostPath] | None
    #: Asks the base server for its older way to confine processes; changes nothing that is allowed.
    useLegacyLandlock: bool | None
    #: The home directory of the user on this host, as the client knows it.
    userHomeDir: HostPath | None
    #: What `project_roots` stands for.
    workspaceRoots: list[HostPath] | None

class _SandboxEntry(TypedDict):
    #: The access.
    access: SandboxAccess
    #: The path.
    path: SandboxEntryPath


class SandboxEntry(_SandboxEntry, total=False):
    """Access to one path."""
    #: What to do if the path does not exist.
    missing_path_behavior: SandboxMissingPathBehavior | None

#: A path in the file system.
SandboxEntryPath: TypeAlias = "dict[str, Any]"

#: Access to files.
SandboxFileSystem: TypeAlias = "dict[str, Any]"

class _SandboxHosts(TypedDict):
    #: What may be reached.
    allow: list[str]


class SandboxHosts(_SandboxHosts, total=False):
    """Hosts as `HOST` or `HOST:PORT`, where `HOST` is a name, `*.DOMAIN`, `**.DOMAIN`, `*` or an address."""
    #: What may not be reached, even if `allow` matches it.
    deny: list[str]

#: What an entry means if its path does not exist.
SandboxMissingPathBehavior = Literal["skip"] | Literal["other"]

#: Access to the network.
SandboxNetwork = Literal["restricted"] | Literal["enabled"]

SandboxOrNull: TypeAlias = "SandboxContext | None"

#: What is allowed. Unlike everything else on the wire its members are in snake case.
SandboxPermissions: TypeAlias = "dict[str, Any]"

class SandboxPolicyContext(TypedDict, total=False):
    """What permissions are relative to."""
    #: What relative permissions start from.
    cwd: HostPath | None
    #: What `project_roots` stands for.
    workspaceRoots: list[HostPath] | None

#: A path that the server knows by name.
SandboxSpecialPath: TypeAlias = "dict[str, Any]"

class SessionEndParams(TypedDict):
    """`session/end`: ends the processes of a session, then the session."""
    #: A session of the same identity.
    sessionId: str

class SessionEndedParams(TypedDict):
    """`session/ended`, for observers: the session has ended. The last events of its processes may follow."""
    #: The observed session.
    sessionId: str

class _SessionEntry(TypedDict):
    #: Whether a connection controls it now.
    attached: bool
    #: What the client that attached last calls itself.
    clientName: str
    #: When it lost its connection, in milliseconds since the Unix epoch; null while attached.
    detachedAtMs: int | None
    #: When it expires unless a client resumes it; null while attached, or if it lives as long as the server.
    expiresAtMs: int | None
    #: The name its client chose.
    name: str | None
    #: How many processes it holds, ended but remembered ones included.
    processes: int
    #: The id that resumes it.
    sessionId: str


class SessionEntry(_SessionEntry, total=False):
    """One session in a `SessionListResult`."""
    #: Whose session it is, such as `owner` or `token:ci`.
    identity: str

class SessionListParams(TypedDict, total=False):
    """`session/list`: lists the sessions of the identity."""
    #: Whose sessions; absent: the identity's.
    scope: SessionScope

class SessionListResult(TypedDict):
    """The answer to `session/list`."""
    #: Every live session that was asked for.
    sessions: list[SessionEntry]

class _SessionObserveParams(TypedDict):
    #: A session of the same identity.
    sessionId: str


class SessionObserveParams(_SessionObserveParams, total=False):
    """`session/observe`: from now on this connection gets that session's notifications too, each with its
    `sessionId`."""
    #: Per process, the first event wanted; processes that are not named start now.
    fromSeq: dict[str, int] | None
    #: The first event wanted of processes that `fromSeq` does not name; without it, they start now.
    othersFromSeq: int | None

#: Whose sessions are listed.
SessionScope = Literal["identity"] | Literal["all"]

class SessionUnobserveParams(TypedDict):
    """`session/unobserve`: ends what `session/observe` began."""
    #: The observed session.
    sessionId: str

#: The params and the result of each method, by their names in this module.
METHODS: dict[str, tuple[str, str]] = {
    "capabilities/discoverV2": ("CapabilitiesDiscoverV2Params", "CapabilitiesDiscoverV2Result"),
    "capabilityRoots/discoverV1": ("CapabilityRootsDiscoverV1Params", "CapabilityRootsDiscoverV1Result"),
    "environment/info": ("EnvironmentInfoParams", "EnvironmentInfo"),
    "environment/status": ("EnvironmentStatusParams", "EnvironmentStatusResult"),
    "environmentConfig/read": ("EnvironmentConfigReadParams", "EnvironmentConfigReadResult"),
    "fs/canonicalize": ("FsCanonicalizeParams", "FsCanonicalizeResult"),
    "fs/close": ("FsCloseParams", "RpcEmptyResult"),
    "fs/copy": ("FsCopyParams", "RpcEmptyResult"),
    "fs/createDirectory": ("FsCreateDirectoryParams", "RpcEmptyResult"),
    "fs/getMetadata": ("FsGetMetadataParams", "FsMetadata"),
    "fs/hash": ("FsHashParams", "FsHashResult"),
    "fs/open": ("FsOpenParams", "FsOpenResult"),
    "fs/readBlock": ("FsReadBlockParams", "FsReadBlockResult"),
    "fs/readDirectory": ("FsReadDirectoryParams", "FsReadDirectoryResult"),
    "fs/readFile": ("FsReadFileParams", "FsReadFileResult"),
    "fs/readLink": ("FsReadLinkParams", "FsReadLinkResult"),
    "fs/remove": ("FsRemoveParams", "RpcEmptyResult"),
    "fs/rename": ("FsRenameParams", "RpcEmptyResult"),
    "fs/search": ("FsSearchParams", "FsSearchResult"),
    "fs/setPermissions": ("FsSetPermissionsParams", "FsSetPermissionsResult"),
    "fs/setTimes": ("FsSetTimesParams", "RpcEmptyResult"),
    "fs/symlink": ("FsSymlinkParams", "RpcEmptyResult"),
    "fs/unwatch": ("FsUnwatchParams", "RpcEmptyResult"),
    "fs/walk": ("FsWalkParams", "FsWalkResult"),
    "fs/watch": ("FsWatchParams", "RpcEmptyResult"),
    "fs/watchMissing": ("FsWatchMissingParams", "FsWatchMissingResult"),
    "fs/writeBlock": ("FsWriteBlockParams", "RpcEmptyResult"),
    "fs/writeFile": ("FsWriteFileParams", "FsWriteFileResult"),
    "http/request": ("HttpRequestParams", "HttpRequestResult"),
    "initialize": ("InitializeParams", "InitializeResult"),
    "process/closeStdin": ("ProcessCloseStdinParams", "RpcEmptyResult"),
    "process/collect": ("ProcessCollectParams", "ProcessCollectResult"),
    "process/forget": ("ProcessForgetParams", "RpcEmptyResult"),
    "process/list": ("ProcessListParams", "ProcessListResult"),
    "process/read": ("ProcessReadParams", "ProcessReadResult"),
    "process/release": ("ProcessReleaseParams", "RpcEmptyResult"),
    "process/resize": ("ProcessResizeParams", "RpcEmptyResult"),
    "process/restart": ("ProcessRestartParams", "ProcessStartResult"),
    "process/seek": ("ProcessSeekParams", "ProcessSeekResult"),
    "process/signal": ("ProcessSignalParams", "RpcEmptyResult"),
    "process/snapshot": ("ProcessSnapshotParams", "ProcessSnapshotResult"),
    "process/start": ("ProcessStartParams", "ProcessStartResult"),
    "process/terminate": ("ProcessTerminateParams", "ProcessTerminateResult"),
    "process/wait": ("ProcessWaitParams", "ProcessWaitResult"),
    "process/write": ("ProcessWriteParams", "ProcessWriteResult"),
    "session/end": ("SessionEndParams", "RpcEmptyResult"),
    "session/list": ("SessionListParams", "SessionListResult"),
    "session/observe": ("SessionObserveParams", "RpcEmptyResult"),
    "session/unobserve": ("SessionUnobserveParams", "RpcEmptyResult"),
}

__all__ = [
    "METHODS", "Base64Bytes", "Base64Text", "CapabilitiesDiscoverV2Params", "CapabilitiesDiscoverV2Result",
    "CapabilitiesDiscoveryRoot", "CapabilitiesPlugin", "CapabilitiesPluginFiles", "CapabilitiesSkill",
    "CapabilitiesSkillDependencies", "CapabilitiesSkillFiles", "CapabilitiesSkillPolicy",
    "CapabilitiesSkillTool", "CapabilitiesTextFile", "CapabilityRootsDiscoverV1Params",
    "CapabilityRootsDiscoverV1Result", "CapabilityRootsFound", "CapabilityRootsRoot",
    "EnvironmentConfigLayer", "EnvironmentConfigLayers", "EnvironmentConfigReadParams",
    "EnvironmentConfigReadResult", "EnvironmentConfinement", "EnvironmentFeatures", "EnvironmentInfo",
    "EnvironmentInfoParams", "EnvironmentKeeper", "EnvironmentLimitMethod", "EnvironmentProcessConfinement",
    "EnvironmentProcessLimits", "EnvironmentShell", "EnvironmentStarts", "EnvironmentState",
    "EnvironmentStatus", "EnvironmentStatusParams", "EnvironmentStatusResult", "FlowAckParams",
    "FlowBodyConsumedParams", "FlowConsumedParams", "FlowMarkParams", "FsCanonicalizeParams",
    "FsCanonicalizeResult", "FsChange", "FsChangeKind", "FsChangedParams", "FsCloseParams", "FsContentHash",
    "FsCopyParams", "FsCreateDirectoryParams", "FsDirectoryEntry", "FsFoundFile", "FsFoundLine",
    "FsGetMetadataParams", "FsHashParams", "FsHashResult", "FsIfMatch", "FsMetadata", "FsMetadataKind",
    "FsMissingChangedParams", "FsOpenMode", "FsOpenParams", "FsOpenResult", "FsReadBlockParams",
    "FsReadBlockResult", "FsReadDirectoryParams", "FsReadDirectoryResult", "FsReadFileParams",
    "FsReadFileResult", "FsReadLinkParams", "FsReadLinkResult", "FsRemoveParams", "FsRenameParams",
    "FsSearchLimit", "FsSearchOptions", "FsSearchParams", "FsSearchReport", "FsSearchResult",
    "FsSetPermissionsParams", "FsSetPermissionsResult", "FsSetTimesParams", "FsSymlinkParams",
    "FsUnwatchParams", "FsWalkEntry", "FsWalkError", "FsWalkKind", "FsWalkOptions", "FsWalkParams",
    "FsWalkResult", "FsWatchMissingParams", "FsWatchMissingResult", "FsWatchParams", "FsWriteBlockParams",
    "FsWriteFileParams", "FsWriteFileResult", "HostPath", "HttpRedirectPolicy", "HttpRequestBodyDeltaParams",
    "HttpRequestHeader", "HttpRequestParams", "HttpRequestResult", "HttpResponseHeader",
    "InitializeCapabilities", "InitializeCapability", "InitializeLimits", "InitializeParams",
    "InitializeResult", "InitializeServer", "InitializedParams", "NetworkDecision",
    "NetworkPolicyDecisionParams", "NetworkPolicyRequestParams", "NetworkPolicyRequestResult",
    "NetworkProtocol", "NetworkTarget", "ProcessChunk", "ProcessCloseStdinParams", "ProcessClosedParams",
    "ProcessCollectParams", "ProcessCollectResult", "ProcessCollectedEntry", "ProcessDeniedHost",
    "ProcessEntry", "ProcessEnvInherit", "ProcessEnvPolicy", "ProcessExitCause", "ProcessExitedParams",
    "ProcessFailedParams", "ProcessForgetParams", "ProcessGapCause", "ProcessGapParams", "ProcessGapRange",
    "ProcessListParams", "ProcessListResult", "ProcessOutputOptions", "ProcessOutputParams",
    "ProcessOverflow", "ProcessProduced", "ProcessReadParams", "ProcessReadResult", "ProcessReleaseParams",
    "ProcessResizeParams", "ProcessResourceLimits", "ProcessRestart", "ProcessRestartParams",
    "ProcessRestartPolicy", "ProcessSandboxType", "ProcessScope", "ProcessSeekParams", "ProcessSeekPosition",
    "ProcessSeekResult", "ProcessShellSnapshot", "ProcessSignalName", "ProcessSignalParams",
    "ProcessSnapshotParams", "ProcessSnapshotResult", "ProcessStartParams", "ProcessStartResult",
    "ProcessStartedParams", "ProcessState", "ProcessStream", "ProcessTerminateMode", "ProcessTerminateParams",
    "ProcessTerminateResult", "ProcessTerminateScope", "ProcessUsage", "ProcessWaitCondition",
    "ProcessWaitParams", "ProcessWaitReason", "ProcessWaitResult", "ProcessWriteParams", "ProcessWriteResult",
    "ProcessWriteStatus", "RequestCancelParams", "RpcEmptyResult", "RpcError", "RpcErrorData", "RpcErrorKind",
    "RpcRequestId", "SandboxAccess", "SandboxContext", "SandboxEntry", "SandboxEntryPath",
    "SandboxFileSystem", "SandboxHosts", "SandboxMissingPathBehavior", "SandboxNetwork", "SandboxOrNull",
    "SandboxPermissions", "SandboxPolicyContext", "SandboxSpecialPath", "SessionEndParams",
    "SessionEndedParams", "SessionEntry", "SessionListParams", "SessionListResult", "SessionObserveParams",
    "SessionScope", "SessionUnobserveParams",
]
