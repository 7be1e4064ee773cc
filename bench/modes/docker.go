package modes

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// Containers of Docker: on its bridge, in the host's network, and with no network, grafted by
// tsugiki-runtime. What Docker's own processes use is not counted.
const (
	DockerBridge Mode = "docker-bridge"
	DockerHost   Mode = "docker-host"
	DockerGraft  Mode = "docker-graft"
)

// IsDocker tells whether a mode's programs run in containers of Docker.
func (m Mode) IsDocker() bool { return m == DockerBridge || m == DockerHost || m == DockerGraft }

// docker is a Docker of our own in the namespace that stands for the host, with an agent beside it.
type docker struct {
	dir   string
	rig   *engines.Rig
	agent *testkit.Cmd
	count int // of containers
	clean func()
}

// agentConfig lets containers of Docker be grafted.
const agentConfig = `[charge]
discovery = false
[[allow]]
engines = ["docker"]
names = ["*"]
annotations = ["egress", "ingress"]
destinations = ["0.0.0.0/0"]
addresses = [%q]
`

// startDocker starts an agent and Docker. After an error, the caller calls close, which ends what has
// been started.
func (r *Runner) startDocker(ctx context.Context) error {
	if err := testkit.Programs("dockerd", "docker", "containerd", "runc", "iptables"); err != nil {
		return err
	}
	bin, err := testkit.Binaries()
	if err != nil {
		return fmt.Errorf("find tsugiki: %w", err)
	}
	d := &docker{clean: func() {}}
	r.docker = d
	// Paths of unix sockets are short.
	if d.dir, err = os.MkdirTemp("/tmp", "bench-"); err != nil {
		return err
	}
	run := filepath.Join(d.dir, "run")
	config := filepath.Join(d.dir, "agent.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, agentConfig, testkit.HostAddr4), 0o644); err != nil {
		return err
	}
	d.agent = r.Top.Host.Command(context.Background(), filepath.Join(bin, "tsugiki"), "agent",
		"--config", config, "--run-dir", run, "--state-dir", filepath.Join(d.dir, "state"))
	if err := d.agent.Start(); err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	image, err := engines.BuildImage(d.dir)
	if err != nil {
		return err
	}
	d.rig, err = engines.New(r.Top.Host, engines.Options{
		Image:    image,
		Runtimes: map[string]string{"tsugiki": filepath.Join(bin, "tsugiki-runtime")},
		Env:      []string{"TSUGIKI_AGENT=" + api.SocketIn(run)},
	})
	if err != nil {
		return err
	}
	if d.clean, err = testkit.Outside(func(t testkit.TB) { d.rig.Start(t, "docker") }); err != nil {
		return fmt.Errorf("start Docker: %w", err)
	}
	// Docker and the topology have a chain each that drops the packets of the other's containers.
	const accept = "insert rule ip engine forward iifname docker0 accept; insert rule ip engine forward oifname docker0 accept"
	return errors.Join(r.onHost(ctx, "iptables", "-P", "FORWARD", "ACCEPT"), r.onHost(ctx, "nft", accept))
}

func (d *docker) close() error {
	if d == nil {
		return nil
	}
	d.clean()
	var err error
	if d.rig != nil {
		err = d.rig.Close()
	}
	if d.agent != nil && d.agent.Process != nil {
		_ = d.agent.Process.Signal(os.Interrupt)
		late := time.AfterFunc(removeLimit, func() { _ = d.agent.Process.Kill() })
		_ = d.agent.Wait()
		late.Stop()
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}

// run prepares a container in a mode. A port that is not 0 is published at the host's address. The
// container has the folder of its program, at the same path, if that is absolute.
func (d *docker) run(ctx context.Context, m Mode, cpu *int, port uint16, argv []string) (c *testkit.Cmd, name string) {
	d.count++
	name = fmt.Sprintf("bench-%d", d.count)
	args := []string{"run", "--rm", "--name", name}
	if folder := filepath.Dir(argv[0]); filepath.IsAbs(folder) {
		args = append(args, "--volume", folder+":"+folder+":ro")
	}
	if cpu != nil { // busybox has no --cpu-list
		mask := new(big.Int).Lsh(big.NewInt(1), uint(*cpu))
		argv = append([]string{"taskset", mask.Text(16)}, argv...)
	}
	switch m {
	case DockerBridge:
		if port != 0 {
			args = append(args, "--publish", fmt.Sprintf("%s:%d:%[2]d", testkit.HostAddr4, port))
		}
	case DockerHost:
		args = append(args, "--network", "host")
	case DockerGraft:
		args = append(args, "--network", "none", "--runtime", "tsugiki", "--label", "tsugiki.dev/egress=0.0.0.0/0="+testkit.HostAddr4.String())
		if port != 0 {
			args = append(args, "--label", fmt.Sprintf("tsugiki.dev/ingress=0.0.0.0:%d=%s:%[1]d", port, testkit.HostAddr4))
		}
	}
	args = append(append(args, engines.ImageName), argv...)
	return d.rig.Command(ctx, "docker", args...), name
}

// removeLimit bounds the removal of a container, and the end of the agent.
const removeLimit = 30 * time.Second

// publish is Publish for a mode of Docker.
func (d *docker) publish(ctx context.Context, m Mode, cpu *int, port uint16, argv []string) (end func(), err error) {
	c, name := d.run(ctx, m, cpu, port, argv)
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("start a container in mode %s: %w", m, err)
	}
	return func() {
		limited, cancel := context.WithTimeout(context.Background(), removeLimit)
		defer cancel()
		_ = d.rig.Command(limited, "docker", "rm", "--force", name).Run() // or it has ended
		_ = c.Wait()                                                      // with the container
	}, nil
}
