package kubetest

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Namespace is that of tsugiki-kube.
const Namespace = "tsugiki"

// NodeToken makes a pod of tsugiki-kube on a node, and returns its token, as the pod of the DaemonSet
// has it.
func NodeToken(ctx context.Context, c client.Client, node string) (string, error) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "tsugiki-kube-" + node, Namespace: Namespace},
		Spec: corev1.PodSpec{
			ServiceAccountName: "tsugiki-kube-node", NodeName: node, AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
	if err := c.Create(ctx, pod); err != nil {
		return "", fmt.Errorf("make the pod of tsugiki-kube on %s: %w", node, err)
	}
	return token(ctx, c, pod.Spec.ServiceAccountName, &authenticationv1.BoundObjectReference{
		Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID,
	})
}

// ClusterToken returns a token of the tsugiki-kube of the cluster.
func ClusterToken(ctx context.Context, c client.Client) (string, error) {
	return token(ctx, c, "tsugiki-kube-cluster", nil)
}

func token(ctx context.Context, c client.Client, account string, bound *authenticationv1.BoundObjectReference) (string, error) {
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}
	owner := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account, Namespace: Namespace}}
	if err := c.SubResource("token").Create(ctx, owner, r); err != nil {
		return "", fmt.Errorf("token of %s: %w", account, err)
	}
	return r.Status.Token, nil
}
