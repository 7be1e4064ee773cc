// Package oci stands between a container engine and the OCI runtime that it calls,
// such as runc: it brings containers to tsugiki agent before they are made.
//
// It owns reading and editing bundles (config.json), names of containers as engines
// have them, and calling the real runtime. It decides nothing about rules, talks to
// no engine, and leaves a container alone of which the agent grafts nothing. It needs
// what the runtime needs: root, and the runtime's own kernel.
//
// # Commands
//
//   - create and run register the container and edit its bundle: the engine's seccomp
//     profile composed with ours and the agent's socket as its listener, the library's
//     folder mounted, LD_PRELOAD in the environment. If the runtime then fails, the
//     container is unregistered.
//   - exec names the library to processes that come with an environment of their own.
//   - delete unregisters.
//   - All others, and containers that are not grafted, become the real runtime.
//
// # State
//
// What has to be known of a container later is in a file beside the agent's socket,
// runtime/HASH.json, written before its bundle is edited; one that was registered and
// got no further is the agent's to forget. What config.json was is kept beside it, as
// config.json.tsugiki, and put back when the container is deleted, unless somebody has
// written another meanwhile: who makes it again from the same bundle finds it as it
// was.
package oci
