package kubetest

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// accounts is the namespace of our service accounts.
const accounts = "tsugiki"

// MakeToken returns a token of a service account of ours. With a node, it is bound to a pod on that node,
// which MakeToken makes, as the token of a DaemonSet's pod is.
func MakeToken(ctx context.Context, admin client.Client, account, node string) (string, error) {
	r := &authenticationv1.TokenRequest{}
	if node != "" {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: account + "-" + node, Namespace: accounts},
			Spec: corev1.PodSpec{
				ServiceAccountName: account, NodeName: node, AutomountServiceAccountToken: new(bool),
				Containers: []corev1.Container{{Name: "c", Image: "i"}},
			},
		}
		if err := admin.Create(ctx, pod); err != nil {
			return "", fmt.Errorf("make the pod of %s on %s: %w", account, node, err)
		}
		r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	of := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account, Namespace: accounts}}
	if err := admin.SubResource("token").Create(ctx, of, r); err != nil {
		return "", fmt.Errorf("make a token of %s: %w", account, err)
	}
	return r.Status.Token, nil
}
