package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/bench/netdrive"
	"github.com/tsugiki/tsugiki/internal/bundle"
	"github.com/tsugiki/tsugiki/internal/cni"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

//go:embed resident/*.c
var residentSource embed.FS

// profile is Docker's of seccomp, below the module's root.
const profile = "intercept/filter/testdata/docker.json"

// firstServer is the remote's first port, and serverLimit ends a server that nobody
// ended, in seconds.
const (
	firstServer = 7000
	serverLimit = "7200"
)

// prepare makes the file system that all containers share, and what their
// config.json have in common.
func (n *node) prepare(ctx context.Context) error {
	for _, build := range []func() (string, error){
		func() (string, error) { return netdrive.Build(ctx, n.dir) },
		func() (string, error) { return netdrive.Compile(ctx, residentSource, filepath.Join(n.dir, "resident")) },
	} {
		program, err := build()
		if err == nil {
			err = n.install(program)
		}
		if err != nil {
			return err
		}
	}
	for _, dir := range []string{"dev", "proc", "sys"} { // to mount on
		if err := os.MkdirAll(filepath.Join(n.rootfs(), dir), 0o755); err != nil {
			return err
		}
	}
	return n.makeSpec(ctx)
}

func (n *node) rootfs() string { return filepath.Join(n.dir, "rootfs") }

// install copies a program into the root of the containers' file system, and its
// libraries to where they are on the machine.
func (n *node) install(program string) error {
	libraries, err := bundle.Libraries(program)
	if err != nil {
		return err
	}
	files := map[string]string{program: filepath.Base(program)}
	for _, library := range libraries {
		files[library] = library
	}
	for from, to := range files {
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		to = filepath.Join(n.rootfs(), to)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, data, 0o755)); err != nil {
			return err
		}
	}
	return nil
}

// makeSpec takes what runc proposes, with Docker's seccomp profile, which all
// engines have much like it.
func (n *node) makeSpec(ctx context.Context) error {
	if err := os.Mkdir(filepath.Join(n.dir, "spec"), 0o755); err != nil {
		return err
	}
	if _, err := n.output(n.rig.Command(ctx, n.runtimes[bare], "spec", "--bundle", filepath.Join(n.dir, "spec"))); err != nil {
		return err
	}
	root, err := testkit.ModuleRoot()
	if err != nil {
		return err
	}
	n.spec = &specs.Spec{}
	if err := readJSON(filepath.Join(n.dir, "spec", "config.json"), n.spec); err != nil {
		return err
	}
	return readJSON(filepath.Join(root, profile), &n.spec.Linux.Seccomp)
}

func readJSON(file string, into any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	return nil
}

// bundle makes the bundle of a container.
func (n *node) bundle(c *container, args []string, edit func(*specs.Spec)) error {
	s, process, linux := *n.spec, *n.spec.Process, *n.spec.Linux
	s.Process, s.Linux, s.Annotations = &process, &linux, map[string]string{}
	s.Root = &specs.Root{Path: n.rootfs(), Readonly: true}
	process.Terminal, process.Args = false, args
	linux.CgroupsPath = filepath.Join("/", filepath.Base(n.rig.Group()), c.id)
	linux.Namespaces = slices.Clone(linux.Namespaces)
	if c.kind == graft {
		s.Annotations[api.AnnotationName] = c.id
		s.Annotations[api.AnnotationEgress] = "0.0.0.0/0=" + testkit.HostAddr4.String()
		if c.port > 0 {
			s.Annotations[api.AnnotationIngress] = fmt.Sprintf("0.0.0.0:%d=%s:%d", servedPort, testkit.HostAddr4, c.port)
		}
	}
	edit(&s)
	c.bundle = filepath.Join(n.dir, "bundles", c.id)
	data, err := json.Marshal(s)
	if err == nil {
		err = os.MkdirAll(c.bundle, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(c.bundle, "config.json"), data, 0o600)
	}
	return err
}

// joinNetwork has a container made in the network namespace that it was given.
func (c *container) joinNetwork(s *specs.Spec) {
	for i := range s.Linux.Namespaces {
		if s.Linux.Namespaces[i].Type == specs.NetworkNamespace && c.ns != nil {
			s.Linux.Namespaces[i].Path = cni.NSPath(c.ns)
		}
	}
}

// shareNetwork has a container use the host's network namespace.
func shareNetwork(s *specs.Spec) {
	s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(ns specs.LinuxNamespace) bool {
		return ns.Type == specs.NetworkNamespace
	})
}

// serve starts the remote's servers, one for each client: connections that are left
// in TIME_WAIT must not meet.
func (n *node) serve(ctx context.Context) error {
	n.servers = make(map[string]uint16)
	wait, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for i, client := range append(slices.Clone(clients), "connect") {
		n.servers[client] = uint16(firstServer + i)
		cmd := n.top.Remote.Command(ctx, filepath.Join(n.dir, "netdrive"), append(n.driveArgs("server", client), "-t", serverLimit)...)
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("start server: %w", err)
		}
		if err := n.top.Remote.WaitListen(wait, "tcp4", n.servers[client]); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) driveArgs(side, client string) []string {
	return []string{side, "tcp_crr", testkit.RemoteAddr4.String(), strconv.Itoa(int(n.servers[client]))}
}

// clientArgs are the command line of a client in a container.
func (n *node) clientArgs(client string) []string {
	return append([]string{"/netdrive"}, n.driveArgs("client", client)...)
}
