package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// generous allows whatever annotations can ask for, but those of which it is not known
// whose they are. Containers with the name granted have rules of the configuration.
var generous = []string{
	"[[allow]]", `engines = ["docker", "podman", "containerd", "cri"]`, `names = ["*"]`, `annotations = ["egress", "endpoints", "ingress", "mode", "name"]`,
	`destinations = ["0.0.0.0/0", "::/0"]`, `addresses = ["0.0.0.0/0", "::/0"]`, `special = ["loopback"]`, `ports = ["1-65535"]`,
	`types = ["ipv4", "ipv6", "unix"]`, `nameable = true`, `netns = ["*", "/*", "/*/*", "/*/*/*", "/*/*/*/*"]`, `paths = ["/run/", "/tmp/"]`,
	"[[container]]", `match = "granted"`, fmt.Sprintf("egress = [%q]", "0.0.0.0/0="+hostAddr4),
}

// said is what the image of the tests says of itself.
const said = "localhost/tsugiki:saying"

// loadSaying gives the engine an image that asks for the host.
func (n *node) loadSaying(t *testing.T) {
	t.Helper()
	image, err := engineImage()
	if err != nil {
		t.Fatal(err)
	}
	saying, err := image.Saying(t.TempDir(), said, map[string]string{
		"tsugiki.dev/egress":    "0.0.0.0/0=" + hostAddr4,
		"tsugiki.dev/ingress":   fmt.Sprintf("0.0.0.0:8090=%s:%d", hostAddr4, servedPort),
		"tsugiki.dev/endpoints": "docker type unix path /run/docker.sock nameable",
		"tsugiki.dev/name":      "granted",
		// What engines say of containers, as if an image could.
		"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-namespace": "kube-system",
		"io.kubernetes.cri.sandbox-name": "x", "io.kubernetes.cri.container-name": "y", "nerdctl/name": "granted",
		"io.container.manager": "cri-o", "io.kubernetes.cri-o.ContainerType": "container",
	})
	if err == nil {
		err = n.Load(saying)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestImageGrantsNothing runs an image that asks for the host's network, in each engine. It
// gets nothing of it, and what who starts the container asks for is heard beside it:
// that the same road is open shows the second container.
func TestImageGrantsNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []engineCase{{engine: "docker", none: true}, {engine: "podman", none: true}, {engine: "ctr", none: true}, {engine: "cri"}} {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, c, generous...)
			n.loadSaying(t)
			o := observe(t, n.srv)
			url := fmt.Sprintf("http://%s:%d/", remoteAddr4, observerPort)
			n.run(t, engines.Container{Name: "plain", Image: said, Runtime: "tsugiki", None: n.none})
			n.exec(t, "plain", "httpd", "-p", "8090", "-h", "/srv")
			if out, err := n.Exec("plain", "wget", "-q", "-O", "-", url); n.none && err == nil || strings.Contains(out, hostAddr4) && n.none {
				t.Errorf("it reaches the remote: %q", out)
			}
			if env := n.exec(t, "plain", "sh", "-c", "echo ${LD_PRELOAD-none}"); env != "none\n" {
				t.Errorf("LD_PRELOAD is %q", env)
			}
			n.checkRefused(t, servedPort)
			if list := succeed(t, command(t, n.h, tsugiki, "ps", "--agent", n.socket())); strings.Count(list, "\n") != 1 {
				t.Errorf("the agent has:\n%s", list)
			}
			const unheard = "annotations of the image are not heard"
			if reaches := n.engine == "docker" || n.engine == "podman"; reaches {
				n.agent.log.await(t, unheard)
			} else if strings.Contains(n.agent.log.String(), unheard) {
				t.Error("the agent has said that annotations are the image's")
			}
			o.take()
			n.run(t, engines.Container{
				Name: "asked", Image: said, Runtime: "tsugiki", None: n.none,
				Annotations: map[string]string{"tsugiki.dev/egress": "0.0.0.0/0=" + sourceAddr4},
			})
			n.exec(t, "asked", "httpd", "-p", "8090", "-h", "/srv")
			if body := n.exec(t, "asked", "wget", "-q", "-O", "-", url); body != sourceAddr4+"\n" {
				t.Errorf("the remote sees %q, want %s", body, sourceAddr4)
			}
			checkAllFrom(t, o.take(), sourceAddr4)
			n.checkRefused(t, servedPort)
			if n.known(t, "asked") == "" {
				t.Error("the agent does not know it by its name")
			}
			n.remove(t, "asked")
			n.remove(t, "plain")
		})
	}
}

// TestImageThatIsGone starts a container again whose image was removed meanwhile. Which of
// its labels were the image's is not known any more: none is heard, which is said.
func TestImageThatIsGone(t *testing.T) {
	t.Parallel()
	n := newNode(t, engineCase{engine: "docker", none: true}, generous...)
	n.loadSaying(t)
	n.run(t, engines.Container{
		Name: "web", Image: said, Runtime: "tsugiki", None: true,
		Annotations: map[string]string{"tsugiki.dev/egress": "0.0.0.0/0=" + sourceAddr4},
	})
	if err := n.Stop("web"); err != nil {
		t.Fatal(err)
	}
	n.waitForgotten(t, "web")
	succeed(t, n.docker(t, "rmi", "-f", said))
	err := n.Start("web")
	if strings.Contains(succeed(t, n.docker(t, "info", "-f", "{{.DriverStatus}}")), "io.containerd.snapshotter") {
		// containerd's store keeps what a container is made of, and so its image's words are known.
		if err != nil {
			t.Fatal(err)
		}
		n.waitKnown(t, "web")
		if err := n.Remove("web"); err != nil {
			t.Fatal(err)
		}
		n.waitForgotten(t, "web")
		return
	}
	if err == nil || !strings.Contains(err.Error(), "may be the image's") || !strings.Contains(err.Error(), "unknown_origin = true") {
		t.Errorf("without the image: %v", err)
	}
	n.waitForgotten(t, "web")
	n.reconfigure(t, strings.Replace(strings.Join(generous, "\n"), "nameable", "unknown_origin = true\nnameable", 1))
	if err := n.Start("web"); err != nil { // the administrator hears it, the image's words included
		t.Fatal(err)
	}
	n.waitKnown(t, "granted")
	if err := n.Remove("web"); err != nil {
		t.Fatal(err)
	}
	n.waitForgotten(t, "granted")
}

// docker prepares docker's own command.
func (n *node) docker(t *testing.T, args ...string) *testkit.Cmd {
	t.Helper()
	return n.rig.Command(timeout(t), "docker", args...)
}

// reconfigure restarts the agent with another configuration.
func (n *node) reconfigure(t *testing.T, lines ...string) {
	t.Helper()
	n.agent.stop()
	configure(t, n.dir, lines...)
	n.agent.start()
}

func (n *node) waitKnown(t *testing.T, name string) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if n.known(t, name) == "" {
			return fmt.Errorf("the agent does not know %s", name)
		}
		return nil
	})
}
