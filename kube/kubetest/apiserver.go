package kubetest

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// apiPort is the API server's port in the host's namespace of the topology.
const apiPort = 6443

// users have a token each, which is their name.
var users = []struct{ name, groups string }{
	{"admin", "system:masters"},
	{"system:kube-controller-manager", ""},
	{"system:kube-scheduler", ""},
	{"system:kube-proxy", ""},
	{"system:node:" + NodeName, "system:nodes"},
}

// NodeName is the name of the cluster's node.
const NodeName = "n1"

// APIServer is etcd and kube-apiserver.
type APIServer struct {
	Server *Process
	Etcd   *Process
	t      testkit.TB
	host   *testkit.Namespace
	dir    string
}

// StartAPIServer starts etcd and kube-apiserver at the host's address, which has some more arguments.
func StartAPIServer(t testkit.TB, host *testkit.Namespace, place Place, args ...string) *APIServer {
	t.Helper()
	server := Program(t, "kube-apiserver")
	need(t, "etcd")
	a := &APIServer{t: t, host: host, dir: tempDir(t)}
	if err := a.files(); err != nil {
		t.Fatalf("%v", err)
	}
	const clients, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	a.Etcd = Run(t, place, "etcd", "--data-dir", a.file("etcd"), "--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	addr := testkit.HostAddr4.String()
	a.Server = Run(t, place, server, append([]string{
		"--etcd-servers", clients,
		"--bind-address", addr, "--advertise-address", addr, "--secure-port", fmt.Sprint(apiPort), "--cert-dir", a.file("certs"),
		"--service-cluster-ip-range", serviceRange, "--authorization-mode", "Node,RBAC", "--token-auth-file", a.file("tokens"),
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", a.file("key"),
		"--service-account-signing-key-file", a.file("key"), "--enable-admission-plugins", "NodeRestriction",
		"--allow-privileged", "--profiling=false", "--kubelet-preferred-address-types", "InternalIP",
	}, args...)...)
	a.Await()
	return a
}

func (a *APIServer) file(name string) string { return filepath.Join(a.dir, name) }

// files writes the users and the key of service accounts.
func (a *APIServer) files() error {
	var tokens strings.Builder
	for _, u := range users {
		fmt.Fprintf(&tokens, "%s,%s,%s,%q\n", u.name, u.name, u.name, u.groups)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return errors.Join(os.WriteFile(a.file("tokens"), []byte(tokens.String()), 0o600), os.WriteFile(a.file("key"), text, 0o600))
}

// Await waits until the API server is ready.
func (a *APIServer) Await() {
	a.t.Helper()
	testkit.Eventually(a.t, func() error {
		if a.Server.Ended() {
			a.t.Fatalf("kube-apiserver has ended")
		}
		return a.Ready()
	})
}

// Ready returns an error if the API server is not ready.
func (a *APIServer) Ready() error {
	client, err := rest.HTTPClientFor(a.Config("admin"))
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	r, err := client.Get(a.url() + "/readyz")
	if err != nil {
		return err
	}
	r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("the API server is not ready: %s", r.Status)
	}
	return nil
}

func (a *APIServer) url() string { return fmt.Sprintf("https://%s:%d", testkit.HostAddr4, apiPort) }

// Config is the configuration of a client in the test's own process, by a user or a token. It
// connects from the node.
func (a *APIServer) Config(token string) *rest.Config { return a.ConfigFrom(a.host, token) }

// ConfigFrom is Config for a client that connects from another namespace.
func (a *APIServer) ConfigFrom(ns *testkit.Namespace, token string) *rest.Config {
	return &rest.Config{
		Host: a.url(), BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: a.file("certs/apiserver.crt")},
		Dial: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			return conn, errors.Join(ns.Do(func() error {
				conn, err = new(net.Dialer).DialContext(ctx, network, addr)
				return err
			}))
		},
	}
}

// Kubeconfig writes the configuration of a client that is a program in the place, and returns its
// path.
func (a *APIServer) Kubeconfig(token string) string {
	a.t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: a.url(), CertificateAuthority: a.file("certs/apiserver.crt")}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "x"
	f, err := os.CreateTemp(a.dir, "kubeconfig-")
	if err != nil {
		a.t.Fatalf("%v", err)
	}
	defer f.Close()
	if err := clientcmd.WriteToFile(*c, f.Name()); err != nil {
		a.t.Fatalf("%v", err)
	}
	return f.Name()
}
