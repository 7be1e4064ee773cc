package engines

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// kube drives containerd or CRI-O as the kubelet does, one pod for each container. (crictl,
// which does the same, is no package of Debian's, and takes half of Kubernetes to
// build.)
type kube struct {
	*Rig
	engine string
	load   func(*Image) error
	client cri.RuntimeServiceClient

	mu   sync.Mutex // guards pods
	pods map[string]*pod
}

// pod is a sandbox and its container.
type pod struct {
	sandbox, container string // ids
	config             *cri.PodSandboxConfig
	spec               *cri.ContainerConfig
}

func startCRI(t testkit.TB, r *Rig) Engine {
	t.Helper()
	need(t, r, "containerd", "ctr", "runc", "/usr/lib/cni/bridge", "/usr/lib/cni/host-local", "/usr/lib/cni/loopback", "iptables")
	r.startContainerd(t, "k8s.io")
	return r.newKube(t, "cri", containerdSocket, func(i *Image) error { return r.importImage("k8s.io", i) })
}

// containerdSocket is where containerd listens, in the rig.
const containerdSocket = "/run/containerd/containerd.sock"

// newKube connects to the socket of an engine that runs in the rig.
func (r *Rig) newKube(t testkit.TB, engine, socket string, load func(*Image) error) *kube {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+r.outside(socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatalf("connect to %s: %v", socket, err)
	}
	t.Cleanup(func() { conn.Close() })
	return &kube{Rig: r, engine: engine, load: load, client: cri.NewRuntimeServiceClient(conn), pods: map[string]*pod{}}
}

func (e *kube) Name() string { return e.engine }

func (e *kube) Load(i *Image) error { return e.load(i) }

// limit bounds a request.
func (e *kube) limit() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), testkit.Patience)
}

func (e *kube) find(name string) (*pod, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p, found := e.pods[name]; found {
		return p, nil
	}
	return nil, fmt.Errorf("no pod %q", name)
}

func (e *kube) Run(c Container) error {
	if c.None || c.Publish != "" {
		return fmt.Errorf("run %s without a network, or publish a port: %w", c.Name, errors.ErrUnsupported)
	}
	p := e.describe(c)
	ctx, cancel := e.limit()
	defer cancel()
	sandbox, err := e.client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config, RuntimeHandler: c.Runtime})
	if err != nil {
		return err
	}
	p.sandbox = sandbox.PodSandboxId
	e.mu.Lock()
	e.pods[c.Name] = p
	e.mu.Unlock()
	if err := e.create(ctx, p); err != nil {
		return errors.Join(err, e.Remove(c.Name))
	}
	return nil
}

// describe is what a kubelet would make of it.
func (e *kube) describe(c Container) *pod {
	p := &pod{
		config: &cri.PodSandboxConfig{
			Metadata:     &cri.PodSandboxMetadata{Name: c.Name, Namespace: "default", Uid: c.Name},
			LogDirectory: filepath.Join(e.dir, "logs", c.Name),
			Annotations:  c.Annotations,
			Linux: &cri.LinuxPodSandboxConfig{
				CgroupParent: "/" + e.name,
				SecurityContext: &cri.LinuxSandboxSecurityContext{
					Privileged: c.Privileged,
					Seccomp:    &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
				},
			},
		},
		spec: &cri.ContainerConfig{
			Metadata:    &cri.ContainerMetadata{Name: "main"},
			Image:       &cri.ImageSpec{Image: c.image()},
			Command:     c.Args,
			Annotations: c.Annotations,
			LogPath:     "main.log",
			Linux: &cri.LinuxContainerConfig{
				SecurityContext: &cri.LinuxContainerSecurityContext{
					Privileged:   c.Privileged,
					Capabilities: &cri.Capability{AddCapabilities: c.CapAdd},
					Seccomp:      &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
				},
			},
		},
	}
	if c.CPUs != 0 {
		const period = 100000
		p.spec.Linux.Resources = &cri.LinuxContainerResources{CpuPeriod: period, CpuQuota: int64(c.CPUs * period)}
	}
	if c.DNS != "" {
		p.config.DnsConfig = &cri.DNSConfig{Servers: []string{c.DNS}}
	}
	for _, env := range c.Env {
		key, value, _ := strings.Cut(env, "=")
		p.spec.Envs = append(p.spec.Envs, &cri.KeyValue{Key: key, Value: value})
	}
	return p
}

// create makes and starts the pod's container.
func (e *kube) create(ctx context.Context, p *pod) error {
	created, err := e.client.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: p.sandbox, Config: p.spec, SandboxConfig: p.config,
	})
	if err != nil {
		return err
	}
	p.container = created.ContainerId
	_, err = e.client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: p.container})
	return err
}

func (e *kube) Exec(name string, args ...string) (string, error) {
	p, err := e.find(name)
	if err != nil {
		return "", err
	}
	ctx, cancel := e.limit()
	defer cancel()
	r, err := e.client.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: p.container, Cmd: args})
	if err != nil {
		return "", err
	}
	if r.ExitCode != 0 {
		return string(r.Stdout), fmt.Errorf("exec in %s: %s: exit status %d: %s", name, strings.Join(args, " "), r.ExitCode, r.Stderr)
	}
	return string(r.Stdout), nil
}

// logPrefix is what the CRI puts before each line of a log.
var logPrefix = regexp.MustCompile(`(?m)^\S+ (stdout|stderr) [FP] `)

func (e *kube) Logs(name string) (string, error) {
	text, err := os.ReadFile(e.outside(filepath.Join(e.dir, "logs", name, "main.log")))
	return logPrefix.ReplaceAllString(string(text), ""), err
}

func (e *kube) IP(name string) (string, error) {
	p, err := e.find(name)
	if err != nil {
		return "", err
	}
	ctx, cancel := e.limit()
	defer cancel()
	r, err := e.client.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.sandbox})
	return r.GetStatus().GetNetwork().GetIp(), err
}

func (e *kube) Running(name string) (bool, error) {
	p, err := e.find(name)
	if err != nil {
		return false, err
	}
	ctx, cancel := e.limit()
	defer cancel()
	r, err := e.client.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: p.container})
	return r.GetStatus().GetState() == cri.ContainerState_CONTAINER_RUNNING, err
}

func (e *kube) end(name string, grace int64) error {
	p, err := e.find(name)
	if err != nil {
		return err
	}
	ctx, cancel := e.limit()
	defer cancel()
	_, err = e.client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: p.container, Timeout: grace})
	return err
}

func (e *kube) Stop(name string) error { return e.end(name, 5) }
func (e *kube) Kill(name string) error { return e.end(name, 0) }

// Start makes another container in the pod, for that is what the kubelet does.
func (e *kube) Start(name string) error {
	p, err := e.find(name)
	if err != nil {
		return err
	}
	ctx, cancel := e.limit()
	defer cancel()
	if _, err := e.client.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: p.container}); err != nil {
		return err
	}
	p.spec.Metadata.Attempt++
	return e.create(ctx, p)
}

func (e *kube) Pause(string) error { return fmt.Errorf("pause in a pod: %w", errors.ErrUnsupported) }
func (e *kube) Unpause(string) error {
	return fmt.Errorf("unpause in a pod: %w", errors.ErrUnsupported)
}

func (e *kube) Remove(name string) error {
	p, err := e.find(name)
	if err != nil {
		return err
	}
	ctx, cancel := e.limit()
	defer cancel()
	if _, err := e.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
		return err
	}
	if _, err := e.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.pods, name)
	return nil
}
