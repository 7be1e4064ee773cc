// Package engines runs real container engines for tests: Docker, containerd
// (by ctr and by its Kubernetes interface), podman, and CRI-O, each as its users install
// it, with an image that is made of the machine's own programs.
//
// It owns the rig that keeps them apart from the machine, and one small
// interface to drive all of them. It knows nothing of grafting. It needs root,
// cgroup v2 (hybrid will do), Linux 5.14 and the programs of scripts/deps.sh.
//
// Theory of operation: the engines of a rig run in the network namespace of a
// topology's host and in a mount namespace of their own, in which /run is empty
// and what is written to /etc and /var/lib is written to an overlay. All that
// they store is in a tmpfs of that namespace; all of their processes, and those
// of their containers, are in one cgroup. So a daemon of the machine is neither
// found nor touched, rigs can run side by side, and to take one down is to kill
// the cgroup. A [Machine] is a rig in which systemd runs services, as on a machine of its own, and
// which packages are installed on. The process that holds the mount namespace (testdata/janitor.sh)
// does so as soon as its standard input ends: when the test asks for it, and as
// well when the test is killed.
package engines
