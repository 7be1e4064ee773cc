// Package kubetest runs real parts of Kubernetes for tests: etcd and kube-apiserver alone, or a
// cluster of one node with the controllers, the scheduler, kubelet, kube-proxy and containerd or CRI-O.
//
// It owns their flags, files and lives. It knows nothing of grafting. Everything runs in the network
// namespace of a topology's host, and a cluster in the mount namespace and cgroups of a rig
// (internal/testkit/engines). It needs root, etcd, and the programs that scripts/kube.sh builds.
package kubetest
