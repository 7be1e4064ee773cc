// Package oci is the runtime that container engines call in place of the real one, such as
// runc. It registers containers with tsugiki agent before it calls the real runtime.
//
// It owns reading and editing bundles (config.json), the engines' names of containers, and
// calling the real runtime. It decides nothing about rules and calls no engine. It does not
// edit a container of which the agent grafts nothing. It needs root and the kernel that the
// real runtime needs.
//
// # Commands
//
//   - create and run register the container and edit its bundle. They compose the engine's
//     seccomp profile with ours, name the agent's socket as its listener, mount the folder of
//     the library and set LD_PRELOAD. If the real runtime fails, they unregister the container.
//   - exec adds the library to the environment of the process.
//   - delete unregisters the container.
//   - --help prints what this program is, and --version prints its version before the runtime's.
//   - Other commands, and commands for containers that are not grafted, execute the real runtime.
//
// # State
//
// The file runtime/HASH.json beside the agent's socket has the state of a container. It is
// written before the bundle is edited. If this process is killed before that, the agent
// removes the registration itself. The original config.json is kept beside the edited one, as
// config.json.tsugiki. delete puts it back, unless somebody has written another config.json: a
// container can be made again from the same bundle.
package oci
