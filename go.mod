module github.com/tsugiki/tsugiki

go 1.24.0

require (
	github.com/cilium/ebpf v0.19.0
	github.com/google/go-cmp v0.7.0
	github.com/pelletier/go-toml/v2 v2.2.4
	github.com/spf13/cobra v1.9.1
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/sys v0.36.0
)

require (
	github.com/coreos/go-systemd/v22 v22.5.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/opencontainers/runtime-spec v1.2.1 // indirect
	github.com/rogpeppe/go-internal v1.14.1 // indirect
	github.com/spf13/pflag v1.0.6 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	go.etcd.io/bbolt v1.4.3 // indirect
)

tool github.com/cilium/ebpf/cmd/bpf2go
