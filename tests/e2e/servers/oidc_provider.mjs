// A certified authorization server, `oidc-provider`, with registration, rotation and its development pages.
// node oidc_provider.mjs DIRECTORY_OF_THE_PACKAGE PORT
const [directory, port] = process.argv.slice(2)
const { default: Provider } = await import(`${directory}/lib/index.js`)
const on = { enabled: true }
const provider = new Provider(`http://127.0.0.1:${port}`, {
  claims: { openid: ['sub', 'email'] },
  conformIdTokenClaims: false,
  cookies: { keys: ['key'] },
  features: { devInteractions: on, registration: on, revocation: on, resourceIndicators: { enabled: false } },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, email: `${id}@example.com` }) }),
  issueRefreshToken: () => true,
  pkce: { required: () => true },
  rotateRefreshToken: true,
  ttl: { AccessToken: 3 },
})
provider.listen(Number(port), '127.0.0.1', () => console.log('ready'))
