// Package e2e has tests of pods in a real cluster of one node: Kubernetes' own programs, containerd or CRI-O
// with tsugiki-runtime, the agent, and tsugiki-kube as users run it. TestInstall has a node that gets all
// of this from the DaemonSet.
//
// It needs root, and what make deps-kube installs and builds.
package e2e
