// An OpenID provider for tests: oidc-provider with JWT access tokens for one resource. Prints its URL as JSON.
import { createServer } from "node:http";
import { Provider } from "oidc-provider";

const { redirect } = JSON.parse(process.argv[2]);
const groups = (name) => (name === "boss" ? ["leads"] : ["engineers"]);
const server = createServer();
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const url = `http://127.0.0.1:${server.address().port}`;
const provider = new Provider(url, {
  clients: [
    {
      client_id: "onetool",
      client_secret: "s3cr3t-of-the-client",
      redirect_uris: [redirect],
      application_type: "native", // so that a redirect to http on loopback is allowed
    },
    {
      client_id: "robot",
      client_secret: "s3cr3t-of-the-robot",
      grant_types: ["client_credentials"],
      redirect_uris: [],
      response_types: [],
    },
  ],
  claims: { openid: ["sub", "groups"] },
  conformIdTokenClaims: false,
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, groups: groups(id) }) }),
  extraTokenClaims: (_, token) => ({ groups: groups(token.accountId) }),
  pkce: { required: () => true },
  features: {
    clientCredentials: { enabled: true },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, indicator) => ({
        scope: "openid",
        audience: indicator,
        accessTokenFormat: "jwt",
        jwt: { sign: { alg: "RS256" } },
      }),
    },
  },
});
server.on("request", provider.callback());
console.log(JSON.stringify({ url }));
